"""Qwen1.5-MoE and Qwen2-57B-A14B: routed experts plus one shared expert with its own gate; some layers stay dense."""

from __future__ import annotations

from estimators.model.families import moe
from estimators.model.families.common import Config, linear
from estimators.model.families.decoder import Parameters, attention, read_heads, rotary
from estimators.model.families.pieces import integers, interleaved, layer_count
from estimators.model.spec import ModelSpec, Part

# transformers Qwen2MoeConfig
DEFAULTS = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16, "decoder_sparse_step": 1, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "num_experts": 60, "qkv_bias": True,
    "tie_word_embeddings": False,
}  # fmt: skip


def sparse_pattern(config: Config) -> list[str]:
    """``sparse`` or ``dense`` by layer: every ``decoder_sparse_step``-th, less ``mlp_only_layers``."""
    step, dense = config.integer("decoder_sparse_step"), set(integers(config, "mlp_only_layers"))
    count = layer_count(config)
    return ["dense" if i in dense or (i + 1) % step else "sparse" for i in range(count)]


def shared_moe(config: Config) -> Parameters:
    """Router, routed experts, the shared expert and its gate."""
    hidden, experts = config.integer("hidden_size"), moe.expert_count(config, "num_experts")
    return (
        *moe.router("mlp.gate", experts, hidden),
        *moe.stacked_experts("mlp.experts", experts, hidden, config.integer("moe_intermediate_size")),
        *moe.gated_mlp("mlp.shared_expert", hidden, config.integer("shared_expert_intermediate_size")),
        *linear("mlp.shared_expert_gate", 1, hidden),
    )


def build(config: Config) -> ModelSpec:
    hidden, heads = config.integer("hidden_size"), read_heads(config)

    def block(kind: str) -> Part:
        dense = kind == "dense"
        mlp = moe.gated_mlp("mlp", hidden, config.integer("intermediate_size")) if dense else shared_moe(config)
        mixer = attention(config, heads, bias=config.flag("qkv_bias"))
        return moe.layers((*mixer, *mlp, *moe.layer_norms(hidden)), "Qwen2MoeDecoderLayer")

    blocks = interleaved(sparse_pattern(config), block)
    return moe.decoder_only(config, "Qwen2MoeForCausalLM", blocks, rotary(config, heads.size))
