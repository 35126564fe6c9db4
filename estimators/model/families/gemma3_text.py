"""Gemma 3, text only (270M, 1B): Gemma 2 with norms on each head's queries and keys, and frequencies by layer type."""

from __future__ import annotations

from estimators.model.families.common import Config, norm
from estimators.model.families.decoder import (
    attention,
    block_norms,
    gated_mlp,
    layer_kinds,
    llama_frame,
    read_heads,
    rotary,
)
from estimators.model.families.gemma import EMBED_SCALE
from estimators.model.families.gemma2 import FOUR_NORMS
from estimators.model.spec import ModelSpec

# transformers Gemma3TextConfig
DEFAULTS = {
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True,
    "attention_bias": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config, must_divide=True)
    bias = config.flag("attention_bias")
    block = (
        *attention(config, heads, bias, bias),
        *norm("self_attn.q_norm", heads.size),
        *norm("self_attn.k_norm", heads.size),
        *gated_mlp(config),
        *block_norms(config, *FOUR_NORMS),
    )
    kinds = tuple(f"{kind}_" for kind in layer_kinds(config, config.integer("sliding_window_pattern", 6)))
    buffers = (EMBED_SCALE, *rotary(config, heads.size, kinds=kinds))
    return llama_frame(config, "Gemma3ForCausalLM", "Gemma3DecoderLayer", block, buffers)
