"""Granite: Llama's block; multipliers on embeddings, attention and residuals are numbers, not tensors."""

from __future__ import annotations

from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, block_norms, gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers GraniteConfig
DEFAULTS = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    bias = config.flag("attention_bias")
    block = (
        *attention(config, heads, bias, bias),
        *gated_mlp(config, config.flag("mlp_bias")),
        *block_norms(config, "input_layernorm", "post_attention_layernorm"),
    )
    return llama_frame(config, "GraniteForCausalLM", "GraniteDecoderLayer", block, rotary(config, heads.size))
