"""Qwen3: Llama's block with an RMSNorm on each head's queries and keys, and a free ``head_dim``."""

from __future__ import annotations

from estimators.model.families.common import Config, norm
from estimators.model.families.decoder import attention, block_norms, gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers Qwen3Config
DEFAULTS = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "tie_word_embeddings": False,
    "attention_bias": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    bias = config.flag("attention_bias")
    block = (
        *attention(config, heads, bias, bias),
        *norm("self_attn.q_norm", heads.size),
        *norm("self_attn.k_norm", heads.size),
        *gated_mlp(config),
        *block_norms(config, "input_layernorm", "post_attention_layernorm"),
    )
    return llama_frame(config, "Qwen3ForCausalLM", "Qwen3DecoderLayer", block, rotary(config, heads.size))
