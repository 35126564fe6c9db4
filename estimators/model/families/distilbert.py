"""DistilBERT: no token types; names and config keys of its own."""

from __future__ import annotations

from estimators.model.families import encoder
from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.pieces import position_ids, root, under
from estimators.model.spec import ModelSpec, Part

# transformers DistilBertConfig
DEFAULTS = {
    "vocab_size": 30522, "max_position_embeddings": 512, "n_layers": 6, "n_heads": 12, "dim": 768,
    "hidden_dim": 3072, "tie_word_embeddings": True,
}  # fmt: skip
COMMON = {"dim": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"}


def build(config: Config) -> ModelSpec:
    config = config.renamed(COMMON)
    config.divided("hidden_size", "num_attention_heads")
    hidden, inner = config.integer("hidden_size"), config.integer("hidden_dim")
    count = config.integer("max_position_embeddings")
    embeddings = (
        *embedding("word_embeddings", config.integer("vocab_size"), hidden),
        *embedding("position_embeddings", count, hidden),
        *norm("LayerNorm", hidden, bias=True),
    )
    block = (
        *(p for name in ("q", "k", "v", "out") for p in linear(f"attention.{name}_lin", hidden, hidden, bias=True)),
        *norm("sa_layer_norm", hidden, bias=True),
        *linear("ffn.lin1", inner, hidden, bias=True),
        *linear("ffn.lin2", hidden, inner, bias=True),
        *norm("output_layer_norm", hidden, bias=True),
    )
    before = (
        root(
            under("distilbert.embeddings", embeddings),
            buffers=(position_ids("distilbert.embeddings.position_ids", count),), role="encoder",
        ),
        Part(block, config.integer("num_hidden_layers"), "distilbert.transformer.layer.{}",
             class_name="TransformerBlock", role="encoder"),
    )  # fmt: skip
    transform = (*linear("vocab_transform", hidden, hidden, bias=True), *norm("vocab_layer_norm", hidden, bias=True))
    return encoder.masked_lm(
        config, "DistilBertForMaskedLM", before, transform,
        bias="vocab_projector.bias", words="distilbert.embeddings.word_embeddings", head="vocab_projector",
    )  # fmt: skip
