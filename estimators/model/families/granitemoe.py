"""Granite MoE: norms listed before the experts, which live under ``block_sparse_moe``."""

from __future__ import annotations

from estimators.model.families import moe
from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers GraniteMoeConfig
DEFAULTS = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "attention_bias": False, "num_local_experts": 8, "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    hidden, heads, bias = config.integer("hidden_size"), read_heads(config), config.flag("attention_bias")
    experts = moe.expert_count(config, "num_local_experts")
    block = (
        *attention(config, heads, bias, bias),
        *moe.layer_norms(hidden),
        *moe.router("block_sparse_moe.router", experts, hidden),
        *moe.stacked_experts("block_sparse_moe.experts", experts, hidden, config.integer("intermediate_size")),
    )
    run = moe.layers(block, "GraniteMoeDecoderLayer", config.integer("num_hidden_layers"))
    return moe.decoder_only(config, "GraniteMoeForCausalLM", [run], rotary(config, heads.size))
