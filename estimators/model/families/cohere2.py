"""Command R7B and Command A: Cohere's block without norms on queries and keys."""

from __future__ import annotations

from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, block_norms, gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers Cohere2Config
DEFAULTS = {
    "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
    "num_attention_heads": 64, "tie_word_embeddings": True, "attention_bias": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    bias = config.flag("attention_bias")
    block = (
        *attention(config, heads, bias, bias),
        *gated_mlp(config),
        *block_norms(config, "input_layernorm"),
    )
    return llama_frame(config, "Cohere2ForCausalLM", "Cohere2DecoderLayer", block, rotary(config, heads.size))
