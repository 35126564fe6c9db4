"""BERT with its masked-language head: decoder weight and bias are both tied."""

from __future__ import annotations

from estimators.model.families import encoder
from estimators.model.families.common import Config, linear, norm
from estimators.model.families.pieces import under
from estimators.model.spec import ModelSpec

# transformers BertConfig
DEFAULTS = encoder.DEFAULTS | {"vocab_size": 30522}


def build(config: Config) -> ModelSpec:
    hidden = config.integer("hidden_size")
    before = (
        encoder.embeddings(config, "bert.embeddings", hidden),
        encoder.blocks(config, "bert.encoder.layer", "BertLayer"),
    )
    transform = (*linear("dense", hidden, hidden, bias=True), *norm("LayerNorm", hidden, bias=True))
    return encoder.masked_lm(
        config, "BertForMaskedLM", before, under("cls.predictions.transform", transform),
        bias="cls.predictions.bias", words="bert.embeddings.word_embeddings", head="cls.predictions.decoder",
    )  # fmt: skip
