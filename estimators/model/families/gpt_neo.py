"""GPT-Neo: learned positions, projections k, v, q; each layer holds its own causal mask, global or local alike."""

from __future__ import annotations

from typing import Any

from estimators.errors import InputError, short
from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import causal_lm, root
from estimators.model.spec import Buffer, ModelSpec, Part

# transformers GPTNeoConfig
DEFAULTS = {
    "vocab_size": 50257, "hidden_size": 2048, "tie_word_embeddings": True, "num_layers": 24, "num_heads": 16,
    "max_position_embeddings": 2048, "attention_types": [[["global", "local"], 12]],
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    config = config.renamed({"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"})
    hidden, positions = config.integer("hidden_size"), config.integer("max_position_embeddings")
    config.divided("hidden_size", "num_attention_heads")
    check_attention_types(config)
    inner = config.integer("intermediate_size", 4 * hidden)
    block = (
        *norm("ln_1", hidden, bias=True),
        *linear("attn.attention.k_proj", hidden, hidden),
        *linear("attn.attention.v_proj", hidden, hidden),
        *linear("attn.attention.q_proj", hidden, hidden),
        *linear("attn.attention.out_proj", hidden, hidden, bias=True),
        *norm("ln_2", hidden, bias=True),
        *linear("mlp.c_fc", inner, hidden, bias=True),
        *linear("mlp.c_proj", hidden, inner, bias=True),
    )
    mask = Buffer("attn.attention.bias", (1, 1, positions, positions), "bool")
    layers = config.integer("num_hidden_layers")
    return causal_lm(
        config,
        "GPTNeoForCausalLM",
        before=root(
            embedding("transformer.wte", config.integer("vocab_size"), hidden),
            embedding("transformer.wpe", positions, hidden),
        ),
        blocks=(Part(block, layers, "transformer.h.{}", class_name="GPTNeoBlock", buffers=(mask,)),),
        after=root(norm("transformer.ln_f", hidden, bias=True)),
        embedding_name="transformer.wte",
    )


def check_attention_types(config: Config) -> None:
    """``[[["global", "local"], 12]]``: kinds and how often they repeat; together as many as layers."""
    types: Any = config.raw("attention_types")
    layers = config.integer("num_hidden_layers")
    try:
        described = sum(len(kinds) * repeats for kinds, repeats in types)
    except (TypeError, ValueError):
        described = -1
    if described != layers:
        raise InputError(
            f"{config.where}: attention_types is {short(types)}; give pairs of kinds and repeats "
            f"that describe {layers} layers"
        )
