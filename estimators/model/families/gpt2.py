"""GPT-2: learned positions, q, k, v in one Conv1D, biases everywhere, tied head."""

from __future__ import annotations

from estimators.errors import NotModelled
from estimators.model.families.common import Config, conv1d, embedding, norm
from estimators.model.families.decoder import causal_lm, root
from estimators.model.spec import ModelSpec, Part

# transformers GPT2Config
DEFAULTS = {
    "vocab_size": 50257, "tie_word_embeddings": True, "n_positions": 1024, "n_embd": 768, "n_layer": 12,
    "n_head": 12,
}  # fmt: skip
COMMON_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}


def refuse_cross_attention(config: Config) -> None:
    if config.flag("add_cross_attention"):
        raise NotModelled(
            f"{config.where}: add_cross_attention is true, and the formula has no cross-attention; "
            "its shapes can be read from transformers instead"
        )


def build(config: Config) -> ModelSpec:
    config = config.renamed(COMMON_NAMES)
    refuse_cross_attention(config)
    hidden = config.integer("hidden_size")
    config.divided("hidden_size", "num_attention_heads")
    inner = config.integer("n_inner", 4 * hidden)
    block = (
        *norm("ln_1", hidden, bias=True),
        *conv1d("attn.c_attn", hidden, 3 * hidden),
        *conv1d("attn.c_proj", hidden, hidden),
        *norm("ln_2", hidden, bias=True),
        *conv1d("mlp.c_fc", hidden, inner),
        *conv1d("mlp.c_proj", inner, hidden),
    )
    return causal_lm(
        config,
        "GPT2LMHeadModel",
        before=root(
            embedding("transformer.wte", config.integer("vocab_size"), hidden),
            embedding("transformer.wpe", config.integer("max_position_embeddings"), hidden),
        ),
        blocks=(Part(block, config.integer("num_hidden_layers"), "transformer.h.{}", class_name="GPT2Block"),),
        after=root(norm("transformer.ln_f", hidden, bias=True)),
        embedding_name="transformer.wte",
    )
