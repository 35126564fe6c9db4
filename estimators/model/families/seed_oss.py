"""Seed-OSS: Llama's block with biases on q, k, v and a separate switch for the output projection."""

from __future__ import annotations

from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, block_norms, gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers SeedOssConfig
DEFAULTS = {
    "vocab_size": 155136, "hidden_size": 4096, "intermediate_size": 27648, "num_hidden_layers": 64,
    "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
    "attention_bias": True, "attention_out_bias": False, "mlp_bias": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    block = (
        *attention(config, heads, config.flag("attention_bias"), config.flag("attention_out_bias")),
        *gated_mlp(config, config.flag("mlp_bias")),
        *block_norms(config, "input_layernorm", "post_attention_layernorm"),
    )
    return llama_frame(config, "SeedOssForCausalLM", "SeedOssDecoderLayer", block, rotary(config, heads.size))
