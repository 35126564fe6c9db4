"""Operations beyond the common ones: in-place sums, writes into slices, expanded views, masks, complex rotations.

Source: torch/tools/autograd/derivatives.yaml, torch/csrc/autograd/functions/tensor.cpp (``CopySlices``).
"""

from __future__ import annotations

from collections.abc import Sequence

from estimators.activations.operations import Operations
from estimators.activations.tape import Dim, Gradient, Operand, Tensor, Weight


def add_in_place(b: Operations, x: Tensor, y: Operand) -> Tensor:
    """``x.add_(y)``: no new memory; the gradient goes to both."""
    result = Tensor(x.storage, x.shape, x.dtype, base=x.base or x)
    operands = [(tuple(x.shape), x.dtype), (tuple(y.shape), y.dtype)]
    needs = x.needs_grad, y.needs_grad

    def backward(g: Tensor) -> list[Gradient]:
        return b.fitted([g if need else None for need in needs], operands)

    return b.tape.record(result, "add_", [x, y], [], backward)


def masked_fill(b: Operations, x: Tensor, name: str) -> Tensor:
    """Keeps the mask, of bools; its gradient is masked in a copy."""
    tape, shape, dtype = b.tape, x.shape, x.dtype
    mask, result = tape.new(f"mask {name}", shape, "bool"), tape.new("masked", shape, dtype)
    return tape.record(result, "masked_fill", [x], [(f"mask {name}", mask)],
                       lambda g: [tape.new("gradient, masked", shape, dtype)])  # fmt: skip


def clamp(b: Operations, x: Tensor, name: str) -> Tensor:
    """Keeps its input; its backward makes a mask (two comparisons and their conjunction) beside the gradient."""
    tape, shape, dtype = b.tape, x.shape, x.dtype

    def backward(_: Tensor) -> list[Gradient]:
        mask = tape.new("inside of the range", shape, "bool")
        made = tape.new("gradient of clamp", shape, dtype)
        del mask
        return [made]

    return tape.record(tape.new(name, shape, dtype), "clamp", [x], [(f"{name} input", x)], backward)


def minimum(b: Operations, x: Tensor) -> Tensor:
    """``torch.min(x, number)``: keeps x; where both are equal the gradient is halved, where x is larger it is zero."""
    tape, shape, dtype = b.tape, x.shape, x.dtype

    def backward(_: Tensor) -> list[Gradient]:
        half, equal = tape.new("half of the gradient", shape, dtype), tape.new("equal", shape, "bool")
        made = tape.new("gradient of minimum", shape, dtype)
        del equal, half
        larger = tape.new("larger", shape, "bool")
        del larger
        return [made]

    return tape.record(tape.new("minimum", shape, dtype), "minimum", [x], [("minimum input", x)], backward)


def chosen(b: Operations, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """``torch.where(condition, x, y)``: keeps the condition; both get a gradient of their own."""
    tape, shape, dtype = b.tape, x.shape, x.dtype
    return tape.record(tape.new("chosen", shape, dtype), "where", [x, y], [("condition", condition)],
                       lambda g: [tape.new("gradient of a choice", shape, dtype) for _ in range(2)])  # fmt: skip


def cast_operand(b: Operations, x: Operand, dtype: str) -> Operand:
    """A weight, or a tensor, in another dtype."""
    if x.dtype == dtype:
        return x
    if isinstance(x, Tensor):
        return b.cast(x, dtype)
    return cast_weight(b, x, dtype)


def cast_weight(b: Operations, weight: Weight, dtype: str) -> Tensor:
    tape, shape, before = b.tape, weight.shape, weight.dtype
    return tape.record(tape.new(f"{weight.name}, cast", shape, dtype), "to", [weight], [],
                       lambda g: [tape.new("gradient of a weight, cast", shape, before)])  # fmt: skip


def expanded(b: Operations, x: Tensor, shape: Sequence[Dim]) -> Tensor:
    """``expand``: a view; its gradient is summed over the copies."""
    tape, before = b.tape, x.shape
    result = Tensor(x.storage, tuple(shape), x.dtype, base=x.base or x)
    return tape.record(result, "expand", [x], [], lambda g: [tape.new("gradient, summed", before, g.dtype)])


def filled(b: Operations, pieces: Sequence[Tensor], shape: Sequence[Dim], name: str) -> Tensor:
    """An empty tensor whose slices are written one after the other (``CopySlices``): each write's backward copies the
    whole gradient and its own slice."""
    tape, dtype = b.tape, pieces[0].dtype
    whole = result = tape.new(name, shape, dtype)
    for piece in pieces:
        result = Tensor(whole.storage, whole.shape, dtype)
        previous, own = (whole if whole.node is not None else None), piece.shape

        def backward(_: Tensor, own: tuple[Dim, ...] = own) -> list[Gradient]:
            rest = tape.new("gradient beside a slice", shape, dtype)
            return [rest, tape.new("gradient of a slice", own, dtype)]

        whole = tape.record(result, "CopySlices", [previous, piece], [], backward)
    return result


def turned(b: Operations, x: Tensor, frequencies: Tensor) -> Tensor:
    """Rotary embeddings as complex numbers, in fp32: the frequencies are kept, nothing else."""
    tape, dtype = b.tape, x.dtype
    upcast, before = b.cast(x, "fp32"), x.shape
    shape = (*x.shape[:-1], int(x.shape[-1]) // 2)
    product = tape.new("rotated", shape, "complex64")

    def backward(_: Tensor) -> list[Gradient]:
        return [Tensor(tape.new("gradient of rotated", shape, "complex64").storage, before, "fp32")]

    tape.record(product, "mul", [upcast], [("frequencies", frequencies)], backward)
    real = Tensor(product.storage, x.shape, "fp32", product.node, base=product)
    return b.cast(real, dtype)


def multiply_in_place(b: Operations, x: Tensor, name: str) -> Tensor:
    """``x *= noise``: the noise is kept."""
    tape, shape, dtype = b.tape, x.shape, x.dtype
    noise = tape.new(name, shape, dtype)
    result = Tensor(x.storage, shape, dtype, base=x.base or x)
    return tape.record(result, "mul_", [x], [(name, noise)],
                       lambda g: [tape.new(f"gradient of {name}", shape, dtype)])  # fmt: skip
