"""EXAONE 4: norms after attention and MLP instead of before, and on each head's queries and keys. No biases."""

from __future__ import annotations

from estimators.model.families.common import Config, norm
from estimators.model.families.decoder import attention, block_norms, gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers Exaone4Config
DEFAULTS = {
    "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "tie_word_embeddings": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    block = (
        *attention(config, heads),
        *norm("self_attn.q_norm", heads.size),
        *norm("self_attn.k_norm", heads.size),
        *gated_mlp(config),
        *block_norms(config, "post_attention_layernorm", "post_feedforward_layernorm"),
    )
    return llama_frame(config, "Exaone4ForCausalLM", "Exaone4DecoderLayer", block, rotary(config, heads.size))
