"""OLMo: Llama's block with norms that have no parameters at all."""

from __future__ import annotations

from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers OlmoConfig
DEFAULTS = {
    "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "tie_word_embeddings": False, "attention_bias": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    bias = config.flag("attention_bias")
    block = (*attention(config, heads, bias, bias), *gated_mlp(config))
    return llama_frame(config, "OlmoForCausalLM", "OlmoDecoderLayer", block, rotary(config, heads.size), final_norm=())
