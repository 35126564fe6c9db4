"""MixtralDecoderLayer and its nearest relatives, Qwen2Moe and Qwen3Moe: transformers/models/mixtral/modeling_mixtral.py."""

from __future__ import annotations

from estimators.activations.blocks.experts import experts, gated_mlp, has_experts, softmax_router
from estimators.activations.blocks.frames import normed_attention, pre_norm
from estimators.activations.blocks.llama import attention
from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor


def mixtral(b: Builder, hidden: Tensor) -> Tensor:
    return pre_norm(b, hidden, attention, mixtral_experts)


def mixtral_experts(b: Builder, hidden: Tensor) -> Tensor:
    weights, indices = softmax_router(b, hidden, "mlp.gate", True, keeps_fp32=True)
    return experts(b, hidden, weights, indices)


def qwen2_moe(b: Builder, hidden: Tensor) -> Tensor:
    """Experts with a gated shared expert; some layers are dense."""
    return pre_norm(b, hidden, attention, shared_experts if has_experts(b) else gated_mlp)


def shared_experts(b: Builder, hidden: Tensor) -> Tensor:
    """Qwen2MoeSparseMoeBlock: the shared expert runs first and is gated by a sigmoid."""
    shared = gated_mlp(b, hidden, "mlp.shared_expert")
    weights, indices = softmax_router(b, hidden, "mlp.gate", bool(b.config.get("norm_topk_prob")))
    output = experts(b, hidden, weights, indices)
    gates = b.pointwise("sigmoid", b.module(hidden, "mlp.shared_expert_gate"), "output")
    shared = b.multiply(gates, shared, "gate x shared expert")
    return b.add(output, shared)


def qwen3_moe(b: Builder, hidden: Tensor) -> Tensor:
    """Norms on the heads of queries and keys; some layers are dense."""
    return pre_norm(b, hidden, normed_attention, plain_experts if has_experts(b) else gated_mlp)


def plain_experts(b: Builder, hidden: Tensor) -> Tensor:
    weights, indices = softmax_router(b, hidden, "mlp.gate", bool(b.config.get("norm_topk_prob")))
    return experts(b, hidden, weights, indices)
