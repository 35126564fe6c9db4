"""Phi-1, 1.5, 2: one LayerNorm before parallel attention and MLP, biases everywhere, the head's included."""

from __future__ import annotations

from estimators.model.families.common import Config, linear, norm
from estimators.model.families.decoder import attention, block_norms, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers PhiConfig
DEFAULTS = {
    "vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
    "num_attention_heads": 32, "tie_word_embeddings": False, "qk_layernorm": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    head_norms = ("self_attn.q_layernorm", "self_attn.k_layernorm") if config.flag("qk_layernorm") else ()
    block = (
        *attention(config, heads, bias=True, out_bias=True, out="dense"),
        *(parameter for name in head_norms for parameter in norm(name, heads.size, bias=True)),
        *linear("mlp.fc1", inner, hidden, bias=True),
        *linear("mlp.fc2", hidden, inner, bias=True),
        *block_norms(config, "input_layernorm", bias=True),
    )
    return llama_frame(
        config,
        "PhiForCausalLM",
        "PhiDecoderLayer",
        block,
        rotary(config, heads.size, partial=0.5),
        norm("model.final_layernorm", hidden, bias=True),
        head_bias=True,
    )
