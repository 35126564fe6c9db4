"""ELECTRA's generator: embeddings narrower than the blocks, with a projection between."""

from __future__ import annotations

from estimators.model.families import encoder
from estimators.model.families.common import Config, linear, norm
from estimators.model.families.pieces import root, under
from estimators.model.spec import ModelSpec

# transformers ElectraConfig
DEFAULTS = encoder.DEFAULTS | {
    "vocab_size": 30522, "embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4,
    "intermediate_size": 1024,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    hidden, width = config.integer("hidden_size"), config.integer("embedding_size")
    projection = linear("electra.embeddings_project", hidden, width, bias=True) if width != hidden else ()
    before = (
        encoder.embeddings(config, "electra.embeddings", width),
        root(projection, role="encoder"),
        encoder.blocks(config, "electra.encoder.layer", "ElectraLayer"),
    )
    transform = (*norm("LayerNorm", width, bias=True), *linear("dense", width, hidden, bias=True))
    return encoder.masked_lm(
        config, "ElectraForMaskedLM", before, under("generator_predictions", transform),
        bias="generator_lm_head.bias", words="electra.embeddings.word_embeddings", head="generator_lm_head",
    )  # fmt: skip
