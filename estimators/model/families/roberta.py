"""RoBERTa: BERT's block, positions listed last, a head of its own."""

from __future__ import annotations

from estimators.model.families import encoder
from estimators.model.families.common import Config, linear, norm
from estimators.model.families.pieces import under
from estimators.model.spec import ModelSpec

# transformers RobertaConfig
DEFAULTS = encoder.DEFAULTS | {"vocab_size": 50265}


def assemble(config: Config, stem: str) -> ModelSpec:
    hidden = config.integer("hidden_size")
    before = (
        encoder.embeddings(config, "roberta.embeddings", hidden, positions_last=True),
        encoder.blocks(config, "roberta.encoder.layer", f"{stem}Layer"),
    )
    transform = (*linear("dense", hidden, hidden, bias=True), *norm("layer_norm", hidden, bias=True))
    return encoder.masked_lm(
        config, f"{stem}ForMaskedLM", before, under("lm_head", transform),
        bias="lm_head.bias", words="roberta.embeddings.word_embeddings", head="lm_head.decoder",
    )  # fmt: skip


def build(config: Config) -> ModelSpec:
    return assemble(config, "Roberta")
