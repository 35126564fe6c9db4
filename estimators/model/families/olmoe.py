"""OLMoE: query and key norms over whole projections, 64 small experts."""

from __future__ import annotations

from estimators.model.families import moe
from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers OlmoeConfig
DEFAULTS = {
    "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
    "num_attention_heads": 16, "num_key_value_heads": 16, "attention_bias": False, "num_experts_per_tok": 8,
    "num_experts": 64, "tie_word_embeddings": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    hidden, heads, bias = config.integer("hidden_size"), read_heads(config), config.flag("attention_bias")
    experts = moe.expert_count(config, "num_local_experts", "num_experts")
    block = (
        *attention(config, heads, bias, bias),
        *moe.qk_norms(hidden, heads.kv_width),
        *moe.router("mlp.gate", experts, hidden),
        *moe.stacked_experts("mlp.experts", experts, hidden, config.integer("intermediate_size")),
        *moe.layer_norms(hidden),
    )
    run = moe.layers(block, "OlmoeDecoderLayer", config.integer("num_hidden_layers"))
    return moe.decoder_only(config, "OlmoeForCausalLM", [run], rotary(config, heads.size))
