"""Arcee (AFM): Llama's attention, and an MLP without a gate."""

from __future__ import annotations

from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, block_norms, llama_frame, read_heads, rotary, up_down_mlp
from estimators.model.spec import ModelSpec

# transformers ArceeConfig
DEFAULTS = {
    "vocab_size": 32000, "hidden_size": 2560, "intermediate_size": 18432, "num_hidden_layers": 32,
    "num_attention_heads": 32, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config, must_divide=True)
    bias = config.flag("attention_bias")
    block = (
        *attention(config, heads, bias, bias),
        *up_down_mlp(config, config.flag("mlp_bias")),
        *block_norms(config, "input_layernorm", "post_attention_layernorm"),
    )
    return llama_frame(config, "ArceeForCausalLM", "ArceeDecoderLayer", block, rotary(config, heads.size))
