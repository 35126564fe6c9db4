"""BLOOM: a LayerNorm right after the embedding, q, k, v in one tensor, MLP of four times hidden_size, ALiBi."""

from __future__ import annotations

from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import block_norms, causal_lm, root
from estimators.model.spec import ModelSpec, Part

# transformers BloomConfig
DEFAULTS = {
    "vocab_size": 250880, "hidden_size": 64, "tie_word_embeddings": True, "n_layer": 2, "n_head": 8,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    config = config.renamed({"n_embed": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"})
    hidden = config.integer("hidden_size")
    config.divided("hidden_size", "num_attention_heads")
    block = (
        *block_norms(config, "input_layernorm", bias=True),
        *linear("self_attention.query_key_value", 3 * hidden, hidden, bias=True),
        *linear("self_attention.dense", hidden, hidden, bias=True),
        *block_norms(config, "post_attention_layernorm", bias=True),
        *linear("mlp.dense_h_to_4h", 4 * hidden, hidden, bias=True),
        *linear("mlp.dense_4h_to_h", hidden, 4 * hidden, bias=True),
    )
    return causal_lm(
        config,
        "BloomForCausalLM",
        before=root(
            embedding("transformer.word_embeddings", config.integer("vocab_size"), hidden),
            norm("transformer.word_embeddings_layernorm", hidden, bias=True),
        ),
        blocks=(Part(block, config.integer("num_hidden_layers"), "transformer.h.{}", class_name="BloomBlock"),),
        after=root(norm("transformer.ln_f", hidden, bias=True)),
        embedding_name="transformer.word_embeddings",
    )
