"""GLM-4 (9B, hf): biases on q, k, v, gate and up in one tensor, half of each head rotated."""

from __future__ import annotations

from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, block_norms, fused_gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers GlmConfig
DEFAULTS = {
    "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "tie_word_embeddings": False,
    "attention_bias": True,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    block = (
        *attention(config, heads, config.flag("attention_bias")),
        *fused_gated_mlp(config),
        *block_norms(config, "input_layernorm", "post_attention_layernorm"),
    )
    return llama_frame(config, "GlmForCausalLM", "GlmDecoderLayer", block, rotary(config, heads.size, partial=0.5))
