"""ERNIE 4.5 dense: Llama's block with one switch for all biases and a free ``head_dim``."""

from __future__ import annotations

from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, block_norms, gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers Ernie4_5Config
DEFAULTS = {
    "vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128, "tie_word_embeddings": True,
    "use_bias": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    bias = config.flag("use_bias")
    block = (
        *attention(config, heads, bias, bias),
        *gated_mlp(config, bias),
        *block_norms(config, "input_layernorm", "post_attention_layernorm"),
    )
    return llama_frame(config, "Ernie4_5ForCausalLM", "Ernie4_5DecoderLayer", block, rotary(config, heads.size))
