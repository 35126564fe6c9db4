"""DeepseekV2DecoderLayer, DeepseekV3DecoderLayer: transformers/models/deepseek_v{2,3}/modeling_deepseek_v{2,3}.py.

Latent attention: keys and values pass through a low rank; a part of each head is rotated, the key's once for all.
"""

from __future__ import annotations

from collections.abc import Callable

from estimators.activations.blocks.experts import deepseek_v2_router, experts, gated_mlp, has_experts, sigmoid_router
from estimators.activations.blocks.frames import pre_norm
from estimators.activations.blocks.pieces import attended
from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor
from estimators.activations.writes import expanded, filled, turned

Rotate = Callable[[Builder, Tensor, Tensor], tuple[Tensor, Tensor]]
Router = Callable[[Builder, Tensor], tuple[Tensor, Tensor]]


def v2(b: Builder, hidden: Tensor) -> Tensor:
    return pre_norm(b, hidden, lambda b, x: latent(b, x, complex_rotation), feed_forward(b, deepseek_v2_router))


def v3(b: Builder, hidden: Tensor) -> Tensor:
    rotate: Rotate = interleaved if b.flag("rope_interleave", True) else halves
    return pre_norm(b, hidden, lambda b, x: latent(b, x, rotate), feed_forward(b, sigmoid_router))


def feed_forward(b: Builder, router: Router) -> Callable[[Builder, Tensor], Tensor]:
    return (lambda b, x: shared_experts(b, x, router)) if has_experts(b) else gated_mlp


def shared_experts(b: Builder, hidden: Tensor, router: Router) -> Tensor:
    """DeepseekV2Moe, DeepseekV3MoE, Glm4MoeMoE: routed experts first, then the shared one."""
    residuals = hidden
    weights, indices = router(b, hidden)
    hidden = experts(b, hidden, weights, indices)
    return b.add(hidden, gated_mlp(b, residuals, "mlp.shared_experts"))


def latent(b: Builder, hidden: Tensor, rotate: Rotate) -> Tensor:
    """DeepseekV3Attention."""
    heads, rank = b.number("num_attention_heads"), b.number("kv_lora_rank")
    nope, rope = b.number("qk_nope_head_dim"), b.number("qk_rope_head_dim")
    q = b.view(queries(b, hidden), ("B", heads, "S", nope + rope), swaps=True)
    q_pass, q_turn = b.split(q, [("B", heads, "S", nope), ("B", heads, "S", rope)])
    compressed = b.module(hidden, "self_attn.kv_a_proj_with_mqa")
    kv, k_turn = b.split(compressed, [("B", "S", rank), ("B", "S", rope)])
    kv = b.view(b.rms_norm(kv, "self_attn.kv_a_layernorm"), ("B", 1, "S", rank))
    k_turn = b.view(k_turn, ("B", 1, "S", rope))
    q_turn, k_turn = rotate(b, q_turn, k_turn)
    query = b.cat([q_pass, q_turn], q.shape)
    keys, values = expand_kv(b, kv, k_turn)
    return attended(b, query, keys, values, "self_attn.o_proj")


def queries(b: Builder, hidden: Tensor) -> Tensor:
    if "self_attn.kv_a_layernorm.weight" in b.parameters and "self_attn.q_a_layernorm.weight" not in b.parameters:
        return b.module(hidden, "self_attn.q_proj")
    return b.module(b.rms_norm(b.module(hidden, "self_attn.q_a_proj"), "self_attn.q_a_layernorm"), "self_attn.q_b_proj")


def expand_kv(b: Builder, kv: Tensor, k_turn: Tensor) -> tuple[Tensor, Tensor]:
    """Keys are written into an empty tensor, slice by slice; values stay a view of the projection."""
    heads, nope, size = b.number("num_attention_heads"), b.number("qk_nope_head_dim"), b.number("v_head_dim")
    kv = b.view(b.module(kv, "self_attn.kv_b_proj"), ("B", heads, "S", nope + size), swaps=True)
    k_pass, values = b.split(kv, [("B", heads, "S", nope), ("B", heads, "S", size)])
    rope = int(k_turn.shape[-1])
    k_turn = expanded(b, k_turn, ("B", heads, "S", rope))
    return filled(b, [k_pass, k_turn], ("B", heads, "S", nope + rope), "keys"), values


def complex_rotation(b: Builder, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    frequencies = b.given("frequencies", (1, "S", b.number("qk_rope_head_dim") // 2), "complex64")
    q_out = turned(b, q, frequencies)
    k_out = turned(b, k, frequencies)
    return q_out, k_out


def halves(b: Builder, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return b.rotary(q, k, *b.tables(b.number("qk_rope_head_dim")))


def interleaved(b: Builder, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb_interleave: even and odd elements, four products each."""
    cos, sin = b.tables(b.number("qk_rope_head_dim"))
    half = (1, 1, "S", int(cos.shape[-1]) // 2)
    cos, sin = b.narrow(cos, half), b.narrow(sin, half)
    q1, q2, k1, k2 = (b.narrow(t, (*t.shape[:-1], int(t.shape[-1]) // 2)) for t in (q, q, k, k))

    def turn(x1: Tensor, x2: Tensor, whole: Tensor) -> Tensor:
        first = b.add(b.multiply(x1, cos), b.multiply(x2, sin))
        second = b.add(b.multiply(x2, cos), b.multiply(x1, sin))
        return b.cat([first, second], whole.shape)

    q_embed = turn(q1, q2, q)
    k_embed = turn(k1, k2, k)
    return q_embed, k_embed
