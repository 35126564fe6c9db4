"""Gemma 2: Gemma with norms before and after both attention and MLP."""

from __future__ import annotations

from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, block_norms, gated_mlp, llama_frame, read_heads, rotary
from estimators.model.families.gemma import EMBED_SCALE
from estimators.model.spec import ModelSpec

# transformers Gemma2Config
DEFAULTS = {
    "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True,
    "attention_bias": False,
}  # fmt: skip
FOUR_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def build(config: Config) -> ModelSpec:
    heads = read_heads(config, must_divide=True)
    bias = config.flag("attention_bias")
    block = (
        *attention(config, heads, bias, bias),
        *gated_mlp(config),
        *block_norms(config, *FOUR_NORMS),
    )
    buffers = (EMBED_SCALE, *rotary(config, heads.size))
    return llama_frame(config, "Gemma2ForCausalLM", "Gemma2DecoderLayer", block, buffers)
