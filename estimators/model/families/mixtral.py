"""Mixtral: every block routes to 8 stacked experts; grouped-query attention without biases."""

from __future__ import annotations

from estimators.model.families import moe
from estimators.model.families.common import Config
from estimators.model.families.decoder import Heads, Parameters, attention, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers MixtralConfig
DEFAULTS = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}  # fmt: skip


def block(config: Config, heads: Heads) -> Parameters:
    hidden, experts = config.integer("hidden_size"), moe.expert_count(config, "num_experts", "num_local_experts")
    return (
        *attention(config, heads),
        *moe.router("mlp.gate", experts, hidden),
        *moe.stacked_experts("mlp.experts", experts, hidden, config.integer("intermediate_size")),
        *moe.layer_norms(hidden),
    )


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    run = moe.layers(block(config, heads), "MixtralDecoderLayer", config.integer("num_hidden_layers"))
    return moe.decoder_only(config, "MixtralForCausalLM", [run], rotary(config, heads.size))
