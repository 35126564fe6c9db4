"""Qwen3-MoE: per-head query and key norms, routed experts only; the router comes after the experts."""

from __future__ import annotations

from estimators.model.families import moe
from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, read_heads, rotary
from estimators.model.families.pieces import interleaved
from estimators.model.families.qwen2_moe import sparse_pattern
from estimators.model.spec import ModelSpec, Part

# transformers Qwen3MoeConfig
DEFAULTS = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
    "num_attention_heads": 32, "num_key_value_heads": 4, "attention_bias": False, "decoder_sparse_step": 1,
    "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_local_experts": 128, "tie_word_embeddings": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    hidden, heads, bias = config.integer("hidden_size"), read_heads(config), config.flag("attention_bias")
    experts = moe.expert_count(config, "num_experts", "num_local_experts")

    def block(kind: str) -> Part:
        if kind == "dense":
            mlp = moe.gated_mlp("mlp", hidden, config.integer("intermediate_size"))
        else:
            width = config.integer("moe_intermediate_size")
            mlp = moe.stacked_experts("mlp.experts", experts, hidden, width) + moe.router("mlp.gate", experts, hidden)
        mixer = attention(config, heads, bias, bias) + moe.qk_norms(heads.size, heads.size)
        return moe.layers((*mixer, *mlp, *moe.layer_norms(hidden)), "Qwen3MoeDecoderLayer")

    blocks = interleaved(sparse_pattern(config), block)
    return moe.decoder_only(config, "Qwen3MoeForCausalLM", blocks, rotary(config, heads.size))
