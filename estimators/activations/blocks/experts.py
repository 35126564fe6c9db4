"""Stacked experts as transformers 5 runs them: ``grouped_mm_experts_forward`` of transformers/integrations/moe.py."""

from __future__ import annotations

from estimators.activations.builder import Builder
from estimators.activations.routing import grouped, normalised_in_place, rows, top_k, total
from estimators.activations.tape import Dim, Tensor
from estimators.activations.wrapped import parameter


def experts(b: Builder, hidden: Tensor, weights: Tensor, indices: Tensor, name: str = "mlp.experts") -> Tensor:
    """Every token, once for each expert that serves it, in the order of experts: products, gate, weight, back, sum."""
    count = int(indices.shape[-1])
    routed: tuple[Dim, ...] = ("B", "S", count)
    down, up = parameter(b, name, "down_proj"), parameter(b, name, "gate_up_proj")
    tape, dtype = b.tape, hidden.dtype
    width, narrow = hidden.shape[-1], int(down.shape[-1])

    ids, permutation = tape.new("experts, sorted", routed, "int64"), tape.new("permutation", routed, "int64")
    selected = rows(b, hidden, tape.new("tokens of experts", routed, "int64"), (*routed, width), "selected tokens")
    shares = rows(b, weights, permutation, (*routed, 1), "weights of experts")
    numbers = tape.new("experts as numbers", routed, "fp32")
    offsets = tape.new("offsets", (up.shape[0],), "int32"), tape.new("offsets", (up.shape[0],), "int32")

    made = grouped(b, selected, up, 2 * narrow, offsets[1], f"{name}.gate_up_proj")
    made = gate(b, made, narrow)
    made = grouped(b, made, down, int(width), offsets[1], f"{name}.down_proj")
    weighted = b.multiply(made, shares, "output x weight")
    inverse = tape.new("inverse permutation", routed, "int64")
    tape.new("numbers of rows", routed, "int64")
    weighted = rows(b, weighted, inverse, weighted.shape, "outputs of tokens")
    output = total(b, weighted, ("B", "S", width), "sum over experts")
    del ids, numbers
    return b.cast(output, dtype)


def gate(b: Builder, made: Tensor, narrow: int) -> Tensor:
    """``_default_apply_gate``: act(gate) x up, both views of one product."""
    half: tuple[Dim, ...] = (*made.shape[:-1], narrow)
    gates, ups = b.split(made, (half, half))
    return b.multiply(b.pointwise("silu", gates), ups, "act x up")


def routed(b: Builder, hidden: Tensor, name: str) -> Tensor:
    """Router logits: a bare weight, perhaps with an adapter."""
    weight = parameter(b, name, "weight")
    return b.product(hidden, weight, (*hidden.shape[:-1], int(weight.shape[0])), name)


def softmax_router(b: Builder, hidden: Tensor, name: str, normalise: bool, keeps_fp32: bool = False) -> tuple[Tensor, Tensor]:
    """Softmax over all experts in fp32, then the top k (MixtralTopKRouter, Qwen2MoeTopKRouter)."""
    logits = routed(b, hidden, name)
    values, indices = top_k(b, b.softmax(logits, "fp32", "router softmax"), b.number("num_experts_per_tok"))
    if normalise:
        values = normalised_in_place(b, values)
    return (values if keeps_fp32 else b.cast(values, logits.dtype)), indices


def gated_mlp(b: Builder, x: Tensor, name: str = "mlp") -> Tensor:
    """down(act(gate(x)) * up(x)), of a dense layer or a shared expert."""
    gates = b.pointwise("silu", b.module(x, f"{name}.gate_proj"))
    return b.module(b.multiply(gates, b.module(x, f"{name}.up_proj"), "act x up"), f"{name}.down_proj")


def has_experts(b: Builder, name: str = "mlp.experts") -> bool:
    """Some layers of a mixture are dense."""
    return any(parameter.startswith(f"{name}.") for parameter in b.parameters)
