"""Jais 2: Llama's attention with biases, LayerNorm, an MLP without a gate."""

from __future__ import annotations

from estimators.model.families.common import Config, norm
from estimators.model.families.decoder import attention, block_norms, llama_frame, read_heads, rotary, up_down_mlp
from estimators.model.spec import ModelSpec

# transformers Jais2Config
DEFAULTS = {
    "vocab_size": 150272, "hidden_size": 3328, "intermediate_size": 26624, "num_hidden_layers": 32,
    "num_attention_heads": 26, "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config, must_divide=True)
    bias = config.flag("attention_bias", True)
    block = (
        *attention(config, heads, bias, bias),
        *up_down_mlp(config, config.flag("mlp_bias", True)),
        *block_norms(config, "input_layernorm", "post_attention_layernorm", bias=True),
    )
    return llama_frame(
        config,
        "Jais2ForCausalLM",
        "Jais2DecoderLayer",
        block,
        rotary(config, heads.size),
        norm("model.norm", config.integer("hidden_size"), bias=True),
    )
