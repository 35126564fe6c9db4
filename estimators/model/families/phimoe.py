"""Phi-3.5-MoE: Mixtral's layout with LayerNorms, a linear router and optional biases."""

from __future__ import annotations

from estimators.model.families import moe
from estimators.model.families.common import Config, linear, norm
from estimators.model.families.decoder import attention, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers PhimoeConfig
DEFAULTS = {
    "vocab_size": 32064, "hidden_size": 4096, "intermediate_size": 6400, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_experts_per_tok": 2, "num_local_experts": 16,
    "attention_bias": False, "lm_head_bias": False, "tie_word_embeddings": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    hidden, heads, bias = config.integer("hidden_size"), read_heads(config), config.flag("attention_bias")
    experts = moe.expert_count(config, "num_local_experts")
    block = (
        *attention(config, heads, bias, bias),
        *linear("mlp.router", experts, hidden),
        *moe.stacked_experts("mlp.experts", experts, hidden, config.integer("intermediate_size")),
        *moe.layer_norms(hidden, bias=True),
    )
    run = moe.layers(block, "PhimoeDecoderLayer", config.integer("num_hidden_layers"))
    return moe.decoder_only(
        config, "PhimoeForCausalLM", [run], rotary(config, heads.size),
        final_norm=norm("model.norm", hidden, bias=True), head_bias=config.flag("lm_head_bias"),
    )  # fmt: skip
