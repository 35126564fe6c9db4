"""Operations of mixtures of experts: top-k, permutation of tokens, grouped products.

Source: torch/tools/autograd/derivatives.yaml, torch/csrc/autograd/FunctionsManual.cpp. The scatters of ``topk`` and of
an index are written in place into zeros, as a plain run does (under fake tensors they are not).
"""

from __future__ import annotations

from collections.abc import Sequence

from estimators.activations.builder import Builder
from estimators.activations.operations import Operations
from estimators.activations.tape import Dim, Gradient, Operand, Tensor


def top_k(b: Operations, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and indices (int64, kept); in backward zeros of the input's shape."""
    tape, before = b.tape, x.shape
    shape = (*before[:-1], count)
    values, indices = tape.new("top-k values", shape, x.dtype), tape.new("top-k indices", shape, "int64")
    tape.record(values, "topk", [x], [("top-k indices", indices)],
                lambda g: [tape.new("gradient of top-k", before, g.dtype)])  # fmt: skip
    return values, indices


def gather(b: Operations, x: Tensor, indices: Tensor, name: str) -> Tensor:
    """``x.gather(-1, indices)``: the indices are kept; in backward zeros of the input's shape."""
    tape, before = b.tape, x.shape
    result = tape.new(name, indices.shape, x.dtype)
    return tape.record(result, "gather", [x], [(f"{name} indices", indices)],
                       lambda g: [tape.new(f"gradient of {name}", before, g.dtype)])  # fmt: skip


def rows(b: Operations, x: Tensor, indices: Tensor, shape: Sequence[Dim], name: str) -> Tensor:
    """``x[indices]``: as ``gather``, row by row."""
    tape, before = b.tape, x.shape
    result = tape.new(name, shape, x.dtype)
    return tape.record(result, "index", [x], [(f"{name} indices", indices)],
                       lambda g: [tape.new(f"gradient of {name}", before, g.dtype)])  # fmt: skip


def normalised_in_place(b: Operations, x: Tensor, shifted: bool = False) -> Tensor:
    """``x /= x.sum(-1, keepdim=True)``: autograd keeps a copy of what is overwritten, and the sum ."""
    tape, shape, dtype = b.tape, x.shape, x.dtype
    denominator = total(b, x, (*shape[:-1], 1), "sum of weights", copies=False)
    if shifted:
        denominator = b.shift(denominator)
    needs = x.needs_grad
    copy = tape.new("weights before", shape, dtype) if needs and tape.grad else None
    result = Tensor(x.storage, shape, dtype, base=x.base or x)

    def backward(g: Tensor) -> list[Gradient]:
        into_denominator = b.chain("gradient of a sum", 4, shape, dtype, g)
        into = tape.new("gradient of weights", shape, dtype)
        return b.fitted([into, into_denominator], [(shape, dtype), ((*shape[:-1], 1), dtype)])

    keep = [("weights before", copy), ("sum of weights", denominator)]
    return tape.record(result, "div_", [x, denominator], keep, backward)


def total(b: Operations, x: Tensor, shape: Sequence[Dim], name: str, copies: bool = True) -> Tensor:
    """A sum over one dimension; its gradient is expanded, and copied where the next step wants it whole."""
    tape, before = b.tape, x.shape
    result = tape.new(name, shape, x.dtype)

    def backward(g: Tensor) -> list[Gradient]:
        if copies:
            return [tape.new(f"gradient of {name}", before, g.dtype)]
        return [Tensor(g.storage, before, g.dtype, base=g.base or g)]

    return tape.record(result, "sum", [x], [], backward)


def grouped(b: Operations, x: Tensor, weight: Operand, width: int, offsets: Tensor, name: str) -> Tensor:
    """``grouped_mm``: rows in order of their expert times the 3-D weight; in backward the weight's gradient first."""
    x = b.cast(x, weight.dtype)
    tape, shape, dtype = b.tape, x.shape, x.dtype
    result = tape.new(name, (*shape[:-1], width), dtype)
    needs = x.needs_grad

    def backward(_: Tensor) -> list[Gradient]:
        into_weight = tape.new(f"gradient of {name}", weight.shape, dtype) if weight.needs_grad else None
        into = tape.new(f"gradient of {name} input", shape, dtype) if needs else None
        return [into, into_weight]

    keep: list[tuple[str, Operand | None]] = [("offsets", offsets), (f"{name} input", x if weight.needs_grad else None),
            (f"{name}", weight if needs else None)]  # fmt: skip
    return tape.record(result, "_grouped_mm", [x, weight], keep, backward)


def bias_of(b: Builder, name: str, ids: Tensor) -> Tensor | None:
    """Each row's own bias, taken by its expert; the experts' indices are kept."""
    weight = b.weight(name)
    if weight is None:
        return None
    tape, shape, dtype = b.tape, weight.shape, weight.dtype
    result = tape.new(name, (*ids.shape, shape[1]), dtype)
    return tape.record(result, "index", [weight], [("experts of rows", ids)],
                       lambda g: [tape.new("gradient of a bias", shape, dtype)])  # fmt: skip
