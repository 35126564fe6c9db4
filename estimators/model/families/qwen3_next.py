"""Qwen3-Next: three gated delta-net layers to one gated-attention layer, each with routed and shared experts."""

from __future__ import annotations

from estimators.errors import InputError, short
from estimators.model.families import moe
from estimators.model.families.common import Config, linear, norm
from estimators.model.families.decoder import Heads, Parameters, read_heads, rotary
from estimators.model.families.pieces import convolution, interleaved, layer_count
from estimators.model.families.qwen2_moe import shared_moe, sparse_pattern
from estimators.model.spec import ModelSpec, Parameter, Part

# transformers Qwen3NextConfig
DEFAULTS = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "attention_bias": False,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "decoder_sparse_step": 1,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10,
    "num_experts": 512, "tie_word_embeddings": False,
}  # fmt: skip
ROTARY_SHARE = 0.25  # of a head, unless rope_parameters says otherwise


def delta_net(config: Config) -> Parameters:
    """Linear attention: decay parameters, a depthwise convolution over q, k, v, and fused input projections."""
    hidden, heads = config.integer("hidden_size"), config.integer("linear_num_value_heads")
    keys = config.integer("linear_key_head_dim") * config.integer("linear_num_key_heads")
    size = config.integer("linear_value_head_dim")
    values = size * heads
    mixed = 2 * keys + values
    return (
        Parameter("linear_attn.dt_bias", (heads,), "other"),
        Parameter("linear_attn.A_log", (heads,), "other"),
        *convolution("linear_attn.conv1d", (mixed, 1, config.integer("linear_conv_kernel_dim")), bias=False),
        *linear("linear_attn.in_proj_qkvz", mixed + values, hidden),
        *linear("linear_attn.in_proj_ba", 2 * heads, hidden),
        *norm("linear_attn.norm", size),
        *linear("linear_attn.out_proj", hidden, values),
    )


def gated_attention(config: Config, heads: Heads) -> Parameters:
    """Grouped-query attention whose query projection also makes the output gate."""
    hidden, bias = config.integer("hidden_size"), config.flag("attention_bias")
    return (
        *linear("self_attn.q_proj", 2 * heads.width, hidden, bias),
        *linear("self_attn.k_proj", heads.kv_width, hidden, bias),
        *linear("self_attn.v_proj", heads.kv_width, hidden, bias),
        *linear("self_attn.o_proj", hidden, heads.width, bias),
        *moe.qk_norms(heads.size, heads.size),
    )


def mixers(config: Config) -> list[str]:
    """``layer_types``, or full attention in every ``full_attention_interval``-th layer."""
    count = layer_count(config)
    types = config.raw("layer_types")
    if types is None:
        every = config.integer("full_attention_interval", 4)
        return ["linear_attention" if (i + 1) % every else "full_attention" for i in range(count)]
    known = ("linear_attention", "full_attention")
    if not isinstance(types, list | tuple) or len(types) != count or any(t not in known for t in types):
        raise InputError(f"{config.where}: layer_types is {short(types)}; give {count} of {' or '.join(known)}")
    return list(types)


def build(config: Config) -> ModelSpec:
    hidden, heads = config.integer("hidden_size"), read_heads(config)

    def block(kind: str) -> Part:
        mixer, mlp = kind.split()
        return moe.layers(
            (
                *(delta_net(config) if mixer == "linear_attention" else gated_attention(config, heads)),
                *(shared_moe(config) if mlp == "sparse"
                  else moe.gated_mlp("mlp", hidden, config.integer("intermediate_size"))),
                *moe.layer_norms(hidden),
            ),
            "Qwen3NextDecoderLayer",
        )  # fmt: skip

    kinds = [f"{mixer} {mlp}" for mixer, mlp in zip(mixers(config), sparse_pattern(config), strict=True)]
    buffers = rotary(config, heads.size, partial=ROTARY_SHARE)
    return moe.decoder_only(config, "Qwen3NextForCausalLM", interleaved(kinds, block), buffers)
