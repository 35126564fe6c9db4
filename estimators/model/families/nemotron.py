"""Nemotron (3, 4, Minitron): LayerNorm with biases, an MLP without a gate, half of each head rotated."""

from __future__ import annotations

from estimators.model.families.common import Config, norm
from estimators.model.families.decoder import attention, block_norms, llama_frame, read_heads, rotary, up_down_mlp
from estimators.model.spec import ModelSpec

# transformers NemotronConfig
DEFAULTS = {
    "vocab_size": 256000, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 32,
    "num_attention_heads": 48, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    bias = config.flag("attention_bias")
    block = (
        *attention(config, heads, bias, bias),
        *up_down_mlp(config, config.flag("mlp_bias")),
        *block_norms(config, "input_layernorm", "post_attention_layernorm", bias=True),
    )
    return llama_frame(
        config,
        "NemotronForCausalLM",
        "NemotronDecoderLayer",
        block,
        rotary(config, heads.size, partial=0.5),
        norm("model.norm", config.integer("hidden_size"), bias=True),
    )
