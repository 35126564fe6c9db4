"""Mixtral and its nearest relatives: transformers/models/{mixtral,qwen2_moe,qwen3_moe,olmoe,...}/modeling_*.py."""

from __future__ import annotations

from estimators.activations.blocks.deepseek import feed_forward
from estimators.activations.blocks.experts import (
    experts,
    gated_mlp,
    has_experts,
    mixture,
    sigmoid_router,
    softmax_of_chosen,
    softmax_router,
)
from estimators.activations.blocks.frames import normed_attention, plain_attention, pre_norm
from estimators.activations.blocks.pieces import attended, attention
from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor


def mixtral(b: Builder, hidden: Tensor) -> Tensor:
    return pre_norm(b, hidden, plain_attention, mixtral_experts)


@mixture
def mixtral_experts(b: Builder, hidden: Tensor) -> Tensor:
    weights, indices = softmax_router(b, hidden, "mlp.gate", True, keeps_fp32=True)
    return experts(b, hidden, weights, indices)


def qwen2_moe(b: Builder, hidden: Tensor) -> Tensor:
    """Experts with a gated shared expert; some layers are dense."""
    return pre_norm(b, hidden, plain_attention, shared_experts if has_experts(b) else gated_mlp)


@mixture
def shared_experts(b: Builder, hidden: Tensor) -> Tensor:
    """Qwen2MoeSparseMoeBlock: the shared expert runs first and is gated by a sigmoid."""
    shared = gated_mlp(b, hidden, "mlp.shared_expert")
    weights, indices = softmax_router(b, hidden, "mlp.gate", b.flag("norm_topk_prob"))
    output = experts(b, hidden, weights, indices)
    gates = b.pointwise("sigmoid", b.module(hidden, "mlp.shared_expert_gate"), "output")
    shared = b.multiply(gates, shared, "gate x shared expert")
    return b.add(output, shared)


def qwen3_moe(b: Builder, hidden: Tensor) -> Tensor:
    """Norms on the heads of queries and keys; some layers are dense."""
    return pre_norm(b, hidden, normed_attention, plain_experts if has_experts(b) else gated_mlp)


@mixture
def plain_experts(b: Builder, hidden: Tensor) -> Tensor:
    weights, indices = softmax_router(b, hidden, "mlp.gate", b.flag("norm_topk_prob"))
    return experts(b, hidden, weights, indices)


def olmoe(b: Builder, hidden: Tensor) -> Tensor:
    """OlmoeDecoderLayer: norms over whole projections of queries and keys."""
    return pre_norm(b, hidden, olmoe_attention, plain_experts)


def olmoe_attention(b: Builder, hidden: Tensor) -> Tensor:
    size = b.head_size
    q = b.rms_norm(b.module(hidden, "self_attn.q_proj"), "self_attn.q_norm")
    k = b.rms_norm(b.module(hidden, "self_attn.k_proj"), "self_attn.k_norm")
    v = b.module(hidden, "self_attn.v_proj")
    q, k, v = (b.view(t, ("B", int(t.shape[-1]) // size, "S", size), swaps=True) for t in (q, k, v))
    q, k = b.rotary(q, k, *b.tables(size))
    return attended(b, q, k, v, "self_attn.o_proj")


def granitemoe(b: Builder, hidden: Tensor) -> Tensor:
    """GraniteMoeDecoderLayer: both branches are scaled; the router's softmax is over the chosen experts."""
    return pre_norm(b, hidden, plain_attention, granite_experts, scaled=True)


def granite_experts(b: Builder, hidden: Tensor) -> Tensor:
    weights, indices = softmax_of_chosen(b, hidden, "block_sparse_moe.router", "fp32")
    return experts(b, hidden, weights, indices, "block_sparse_moe.experts")


def glm4_moe(b: Builder, hidden: Tensor) -> Tensor:
    """Glm4MoeDecoderLayer: DeepSeek's experts behind attention that is partly rotated."""
    return pre_norm(b, hidden, glm_attention, feed_forward(b, sigmoid_router))


def glm_attention(b: Builder, hidden: Tensor) -> Tensor:
    heads = b.rms_norm if b.flag("use_qk_norm") else None
    return attention(b, hidden, rotate=partly, norm_heads=heads, norm_before_transpose=True)


def partly(b: Builder, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embeddings of the first share of each head."""
    return b.rotary(q, k, *b.tables(int(b.head_size * b.rotary_share)))
