"""Ministral 3, the text network alone: Mistral's block (published checkpoints wrap it in a vision-language model)."""

from __future__ import annotations

from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, block_norms, gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers Ministral3Config
DEFAULTS = {
    "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    block = (
        *attention(config, heads),
        *gated_mlp(config),
        *block_norms(config, "input_layernorm", "post_attention_layernorm"),
    )
    return llama_frame(config, "Ministral3ForCausalLM", "Ministral3DecoderLayer", block, rotary(config, heads.size))
