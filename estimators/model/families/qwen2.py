"""Qwen1.5, Qwen2, Qwen2.5: Llama's block with biases on q, k, v and on nothing else."""

from __future__ import annotations

from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, block_norms, gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers Qwen2Config
DEFAULTS = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "tie_word_embeddings": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    block = (
        *attention(config, heads, bias=True),
        *gated_mlp(config),
        *block_norms(config, "input_layernorm", "post_attention_layernorm"),
    )
    return llama_frame(config, "Qwen2ForCausalLM", "Qwen2DecoderLayer", block, rotary(config, heads.size))
