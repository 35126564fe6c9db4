"""GLM-4-0414 (9B, 32B): GLM with two more norms, after attention and after MLP."""

from __future__ import annotations

from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, block_norms, fused_gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers Glm4Config
DEFAULTS = {
    "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "tie_word_embeddings": False,
    "attention_bias": True,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    norms = ("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm")
    block = (
        *attention(config, heads, config.flag("attention_bias")),
        *fused_gated_mlp(config),
        *block_norms(config, *norms),
    )
    return llama_frame(config, "Glm4ForCausalLM", "Glm4DecoderLayer", block, rotary(config, heads.size, partial=0.5))
