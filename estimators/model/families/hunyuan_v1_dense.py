"""Hunyuan dense: Llama's block with an RMSNorm on each head's queries and keys."""

from __future__ import annotations

from estimators.model.families.common import Config, norm
from estimators.model.families.decoder import attention, block_norms, gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers HunYuanDenseV1Config
DEFAULTS = {
    "vocab_size": 290943, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "tie_word_embeddings": False, "attention_bias": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    bias = config.flag("attention_bias")
    block = (
        *attention(config, heads, bias, bias),
        *norm("self_attn.query_layernorm", heads.size),
        *norm("self_attn.key_layernorm", heads.size),
        *gated_mlp(config),
        *block_norms(config, "input_layernorm", "post_attention_layernorm"),
    )
    return llama_frame(
        config, "HunYuanDenseV1ForCausalLM", "HunYuanDenseV1DecoderLayer", block, rotary(config, heads.size)
    )
