"""Llama 4, text only: transposed experts with one shared expert, in every ``interleave_moe_layer_step``-th layer."""

from __future__ import annotations

from estimators.model.families import moe
from estimators.model.families.common import Config, linear
from estimators.model.families.decoder import Parameters, attention, read_heads, rotary
from estimators.model.families.pieces import integers, interleaved, layer_count
from estimators.model.spec import ModelSpec, Parameter, Part

# transformers Llama4TextConfig
DEFAULTS = {
    "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
    "num_experts_per_tok": 1, "num_local_experts": 16, "interleave_moe_layer_step": 1, "attention_bias": False,
    "tie_word_embeddings": False,
}  # fmt: skip


def sparse(config: Config) -> Parameters:
    hidden, width = config.integer("hidden_size"), config.integer("intermediate_size")
    experts = moe.expert_count(config, "num_local_experts")
    return (
        Parameter("feed_forward.experts.gate_up_proj", (experts, hidden, 2 * width), "experts"),
        Parameter("feed_forward.experts.down_proj", (experts, width, hidden), "experts"),
        *linear("feed_forward.router", experts, hidden),
        *moe.gated_mlp("feed_forward.shared_expert", hidden, width),
    )


def build(config: Config) -> ModelSpec:
    hidden, heads, bias = config.integer("hidden_size"), read_heads(config), config.flag("attention_bias")
    count, step = layer_count(config), config.integer("interleave_moe_layer_step")
    routed = set(integers(config, "moe_layers", range_of(step, count)))

    def block(kind: str) -> Part:
        wide = config.integer("intermediate_size_mlp")
        mlp = sparse(config) if kind == "sparse" else moe.gated_mlp("feed_forward", hidden, wide)
        return moe.layers(
            (*attention(config, heads, bias, bias), *mlp, *moe.layer_norms(hidden)), "Llama4TextDecoderLayer"
        )

    blocks = interleaved(("sparse" if i in routed else "dense" for i in range(count)), block)
    return moe.decoder_only(config, "Llama4ForCausalLM", blocks, rotary(config, heads.size))


def range_of(step: int, count: int) -> tuple[int, ...]:
    """The last layer of each group of ``step``."""
    return tuple(range(step - 1, count, step))
