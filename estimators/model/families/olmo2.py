"""OLMo 2: norms after attention and MLP, and on the whole width of queries and keys (not head by head)."""

from __future__ import annotations

from estimators.model.families.common import Config, norm
from estimators.model.families.decoder import (
    Heads,
    Parameters,
    attention,
    block_norms,
    gated_mlp,
    llama_frame,
    read_heads,
    rotary,
)
from estimators.model.spec import ModelSpec

# transformers Olmo2Config
DEFAULTS = {
    "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "tie_word_embeddings": False, "attention_bias": False,
}  # fmt: skip


def olmo2_block(config: Config, heads: Heads) -> Parameters:
    bias = config.flag("attention_bias")
    return (
        *attention(config, heads, bias, bias),
        *norm("self_attn.q_norm", heads.width),
        *norm("self_attn.k_norm", heads.kv_width),
        *gated_mlp(config),
        *block_norms(config, "post_attention_layernorm", "post_feedforward_layernorm"),
    )


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    return llama_frame(
        config, "Olmo2ForCausalLM", "Olmo2DecoderLayer", olmo2_block(config, heads), rotary(config, heads.size)
    )
