"""Helium: Llama's block; the output projection is hidden_size square and has no bias, so the heads must fill it."""

from __future__ import annotations

from estimators.errors import InputError
from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, block_norms, gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers HeliumConfig
DEFAULTS = {
    "vocab_size": 48000, "hidden_size": 2560, "intermediate_size": 7040, "num_hidden_layers": 24,
    "num_attention_heads": 20, "num_key_value_heads": 20, "head_dim": 128, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    if heads.width != config.integer("hidden_size"):
        raise InputError(
            f"{config.where}: num_attention_heads {heads.queries} x head_dim {heads.size} is {heads.width}, "
            f"and Helium needs hidden_size {config.integer('hidden_size')}"
        )
    block = (
        *attention(config, heads, config.flag("attention_bias")),
        *gated_mlp(config, config.flag("mlp_bias")),
        *block_norms(config, "input_layernorm", "post_attention_layernorm"),
    )
    return llama_frame(config, "HeliumForCausalLM", "HeliumDecoderLayer", block, rotary(config, heads.size))
