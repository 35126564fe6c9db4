"""Stacked experts as transformers 5 runs them: ``grouped_mm_experts_forward`` of transformers/integrations/moe.py."""

from __future__ import annotations

from collections.abc import Callable

from estimators.activations.builder import Builder
from estimators.activations.routing import bias_of, gather, grouped, normalised_in_place, rows, top_k, total
from estimators.activations.tape import Dim, Tensor
from estimators.activations.wrapped import entered, parameter
from estimators.activations.writes import add_in_place, cast_operand, masked_fill

Gate = Callable[[Builder, Tensor, int], Tensor]
Block = Callable[[Builder, Tensor], Tensor]


def gate(b: Builder, made: Tensor, narrow: int) -> Tensor:
    """``_default_apply_gate``: act(gate) x up, both views of one product."""
    half: tuple[Dim, ...] = (*made.shape[:-1], narrow)
    gates, ups = b.split(made, (half, half))
    return b.multiply(b.activation(b.text("hidden_act", default="silu"), gates), ups, "act x up")


def experts(
    b: Builder, hidden: Tensor, weights: Tensor, indices: Tensor, name: str = "mlp.experts", act: Gate = gate
) -> Tensor:
    """Every token, once for each expert that serves it, in the order of experts: products, gate, weight, back, sum."""
    with b.tape.inside(name):
        return _experts(b, hidden, weights, indices, name, act)


def _experts(b: Builder, hidden: Tensor, weights: Tensor, indices: Tensor, name: str, act: Gate) -> Tensor:
    count = int(indices.shape[-1])
    routed: tuple[Dim, ...] = ("B", "S", count)
    down, up = entered(b, name, "down_proj"), entered(b, name, "gate_up_proj")  # peft wraps the last of names first
    tape, dtype, width = b.tape, hidden.dtype, int(hidden.shape[-1])
    transposed = up.shape[1] == width and up.shape[2] == 2 * down.shape[1]
    narrow = int(down.shape[1] if transposed else down.shape[2])

    ids, permutation = tape.new("experts, sorted", routed, "int64"), tape.new("permutation", routed, "int64")
    selected = rows(b, hidden, tape.new("tokens of experts", routed, "int64"), (*routed, width), "selected tokens")
    shares = rows(b, weights, permutation, (*routed, 1), "weights of experts")
    numbers = tape.new("experts as numbers", routed, "fp32")
    per_expert, offsets = (tape.new(n, (up.shape[0],), "int32") for n in ("tokens per expert", "offsets"))

    bias = bias_of(b, f"{name}.gate_up_proj_bias", ids)
    wide = up.read()  # both wholes are held until the wrappers are left
    made = grouped(b, selected, wide, 2 * narrow, offsets, f"{name}.gate_up_proj")
    made = act(b, add_in_place(b, made, bias) if bias is not None else made, narrow)
    bias = bias_of(b, f"{name}.down_proj_bias", ids)
    back = down.read()
    made = grouped(b, made, back, width, offsets, f"{name}.down_proj")
    made = add_in_place(b, made, bias) if bias is not None else made
    weighted = b.multiply(made, shares, "output x weight")
    inverse = tape.new("inverse permutation", routed, "int64")
    tape.new("numbers of rows", routed, "int64")
    weighted = rows(b, weighted, inverse, weighted.shape, "outputs of tokens")
    output = total(b, weighted, ("B", "S", width), "sum over experts")
    del numbers, per_expert, wide, back
    return b.cast(output, dtype)


def mixture(of: Block) -> Block:
    """A function that is a mixture's module, with its router and its experts inside: DeepSpeed may take it whole."""

    def visited(b: Builder, hidden: Tensor) -> Tensor:
        with b.tape.inside("mlp"):
            return of(b, hidden)

    return visited


# -- routers ----------------------------------------------------------------------------------------------------------
def logits_of(b: Builder, hidden: Tensor, name: str) -> Tensor:
    """Router logits: a bare weight, perhaps with an adapter."""
    weight = parameter(b, name, "weight")
    shape = (*hidden.shape[:-1], int(weight.shape[0]))
    with b.tape.inside(name):
        return returned(b, b.product(hidden, weight, shape, name, b.weight(f"{name}.bias")))


def returned(b: Builder, logits: Tensor) -> Tensor:
    """Routers return their logits too, and the frame of the mixture holds them (``_, weights, indices = ...``)."""
    b.kept_until_return.append(logits)
    return logits


def softmax_router(
    b: Builder, hidden: Tensor, name: str, normalise: bool, keeps_fp32: bool = False
) -> tuple[Tensor, Tensor]:
    """Softmax over all experts in fp32, then the top k (MixtralTopKRouter, Qwen2MoeTopKRouter)."""
    logits = logits_of(b, hidden, name)
    values, indices = top_k(b, b.softmax(logits, "fp32", "router softmax"), b.number("num_experts_per_tok"))
    if normalise:
        values = normalised_in_place(b, values)
    return (values if keeps_fp32 else b.cast(values, logits.dtype)), indices


def softmax_of_chosen(b: Builder, hidden: Tensor, name: str, dtype: str | None) -> tuple[Tensor, Tensor]:
    """The top k, then a softmax over these (GraniteMoeTopKRouter in fp32, GptOssTopKRouter in the stream's dtype)."""
    logits = logits_of(b, hidden, name)
    if dtype:
        logits = b.kept_until_return[-1] = b.cast(logits, dtype)
    values, indices = top_k(b, logits, b.number("num_experts_per_tok"))
    return b.cast(b.softmax(values, None, "router softmax"), hidden.dtype), indices


def fp32_logits(b: Builder, hidden: Tensor, name: str) -> Tensor:
    """DeepSeek's routers multiply in fp32, whatever the weight is stored in."""
    weight = cast_operand(b, parameter(b, name, "weight"), "fp32")
    with b.tape.inside(name):
        return returned(b, b.product(b.cast(hidden, "fp32"), weight, (*hidden.shape[:-1], int(weight.shape[0])), name))


def deepseek_v2_router(b: Builder, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """DeepseekV2TopkRouter: softmax, optionally only within the best groups, top k."""
    scores = b.softmax(fp32_logits(b, hidden, "mlp.gate"), None, "router softmax")
    if b.text("topk_method", default="greedy") == "group_limited_greedy":
        scores = masked_fill(b, scores, "outside of groups")
    values, indices = top_k(b, scores, b.number("num_experts_per_tok"))
    return b.scale(values), indices


def sigmoid_router(b: Builder, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """DeepseekV3TopkRouter, Glm4MoeTopkRouter: sigmoid; the choice by corrected scores carries no gradient."""
    scores = b.pointwise("sigmoid", fp32_logits(b, hidden, "mlp.gate"), "output")
    choice = [b.tape.new("scores for choice", scores.shape, "fp32") for _ in range(3)]
    indices = b.tape.new("top-k indices", (*scores.shape[:-1], b.number("num_experts_per_tok")), "int64")
    values = gather(b, scores, indices, "weights")
    if b.flag("norm_topk_prob", True):
        values = normalised_in_place(b, values, shifted=True)
    del choice
    return b.scale(values), indices


# -- dense and shared experts -----------------------------------------------------------------------------------------
def gated_mlp(b: Builder, x: Tensor, name: str = "mlp") -> Tensor:
    """down(act(gate(x)) * up(x)), of a dense layer or a shared expert."""
    act = b.text("hidden_act", default="silu")  # no name for what it gives: the product lets both factors go
    product = b.multiply(
        b.activation(act, b.module(x, f"{name}.gate_proj")), b.module(x, f"{name}.up_proj"), "act x up"
    )
    return b.module(product, f"{name}.down_proj")


def has_experts(b: Builder, name: str = "mlp.experts") -> bool:
    """Some layers of a mixture are dense."""
    return any(parameter.startswith(f"{name}.") for parameter in b.parameters)
