"""The operations that blocks are written in: what each allocates, keeps for its derivative, and makes in backward.

Source of what is kept and made: torch/tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp;
checked on the real modules. Operands are tensors of the tape or weights; a weight's own memory is the engine's.
"""

from __future__ import annotations

from collections.abc import Sequence

from estimators.activations.tape import Dim, Gradient, Operand, Tape, Tensor
from estimators.devices import DEVICES, Device


def promoted(*dtypes: str) -> str:
    """The dtype that torch computes in: the wider one, fp32 for bf16 with fp16."""
    wide = [d for d in dict.fromkeys(dtypes) if d != "bool"]
    return wide[0] if len(wide) == 1 else "fp32"


def broadcast(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...]:
    """The common shape of two operands."""
    if tuple(a) == tuple(b):
        return tuple(a)
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    padded = (*(1,) * (len(longer) - len(shorter)), *shorter)
    return tuple(y if x == 1 else x for x, y in zip(longer, padded, strict=True))


class Operations:
    """Operations on one tape. ``autocast`` names the dtype that torch.autocast gives to matrix products, or is None."""

    def __init__(self, tape: Tape, autocast: str | None = None, device: Device = DEVICES["cuda"]) -> None:
        self.tape, self.autocast, self.device = tape, autocast, device

    # -- helpers --------------------------------------------------------------------------------------------------
    def chain(self, name: str, count: int, shape: Sequence[Dim], dtype: str, like: Tensor) -> Tensor:
        """``count`` tensors made one after the other in one expression: all live until its end, the last stays."""
        made = [self.tape.new(name, shape, dtype, like) for _ in range(count)]
        return made[-1]

    def fitted(self, gradients: list[Gradient], operands: Sequence[tuple[tuple[Dim, ...], str]]) -> list[Gradient]:
        """Gradients brought to their operands: summed over broadcast dimensions, then cast (engine.cpp
        ``validate_outputs``)."""
        for index, (shape, dtype) in enumerate(operands):
            made = gradients[index]
            if made is None:
                continue
            if made.shape != shape:
                made = gradients[index] = self.tape.new("gradient, summed", shape, made.dtype)
            if made.dtype != dtype:
                gradients[index] = self.tape.new("gradient, cast", shape, dtype, made)
            del made
        return gradients

    # -- shapes ---------------------------------------------------------------------------------------------------
    def view(self, x: Tensor, shape: Sequence[Dim], swaps: bool = False) -> Tensor:
        """The same storage in another shape; a copy where the layout does not allow it (``reshape``).

        ``swaps``: heads and tokens change places, which makes or undoes a strided layout. Its gradient comes back
        through a transpose and a reshape: a view if it arrives strided too, else a copy.
        """
        tape, before, dims = self.tape, x.shape, tuple(shape)
        if x.strided and not swaps:
            return self.contiguous(x, shape)
        result = Tensor(x.storage, dims, x.dtype, base=x.base or x)
        result.strided = swaps and not x.strided

        def backward(g: Tensor) -> list[Gradient]:
            if g.strided != swaps:
                return [tape.new("gradient, contiguous", before, g.dtype)]
            return [Tensor(g.storage, before, g.dtype, base=g.base or g)]

        def backward_to_swapped(g: Tensor) -> list[Gradient]:
            made = Tensor(g.storage, before, g.dtype, base=g.base or g)
            made.strided = not g.strided
            return [made]

        return tape.record(result, "view", [x], [], backward_to_swapped if swaps and x.strided else backward)

    def contiguous(self, x: Tensor, shape: Sequence[Dim] | None = None, name: str = "contiguous") -> Tensor:
        """A copy in another layout: keeps nothing; its gradient is a view."""
        tape, before, strided = self.tape, x.shape, x.strided
        result = tape.new(name, x.shape if shape is None else shape, x.dtype)

        def backward(g: Tensor) -> list[Gradient]:
            made = Tensor(g.storage, before, g.dtype, base=g.base or g)
            made.strided = strided
            return [made]

        return tape.record(result, "clone", [x], [], backward)

    def narrow(self, x: Tensor, shape: Sequence[Dim]) -> Tensor:
        """A slice ``x[..., :n]``: a view; in backward a whole tensor of zeros with the gradient in it."""
        tape, before = self.tape, x.shape
        result = Tensor(x.storage, tuple(shape), x.dtype, base=x.base or x)
        result.strided = x.strided
        return tape.record(result, "slice", [x], [], lambda g: [tape.new("gradient of slice", before, g.dtype)])

    def split(self, x: Tensor, shapes: Sequence[Sequence[Dim]]) -> list[Tensor]:
        """chunk, split, unbind: views with one node; in backward one whole tensor when all gradients have come."""
        tape, before, dtype = self.tape, x.shape, x.dtype
        slots: list[Tensor] = []

        def gather(_: Tensor) -> list[Gradient]:
            made = tape.new("gradient of split", before, dtype)
            slots.clear()
            return [made]

        parent = tape.record(Tensor(x.storage, x.shape, dtype), "split", [x], [], gather)

        def piece(shape: Sequence[Dim]) -> Tensor:
            def backward(g: Tensor) -> list[Gradient]:
                slots.append(g)
                return [tape.new("token", (0,), dtype)]

            view = Tensor(x.storage, tuple(shape), dtype, base=x.base or x)
            view.strided = x.strided
            return tape.record(view, "split", [parent], [], backward)

        return [piece(shape) for shape in shapes]

    def cat(self, pieces: Sequence[Tensor], shape: Sequence[Dim], name: str = "cat") -> Tensor:
        """Concatenation: gradients are views of the incoming one (not dense, so that nothing is summed into them)."""
        dtype = promoted(*(p.dtype for p in pieces))
        result = self.tape.new(name, shape, dtype)
        operands = [(p.shape, p.dtype) for p in pieces]

        def backward(g: Tensor) -> list[Gradient]:
            return self.fitted([Tensor(g.storage, s, g.dtype, base=g.base or g) for s, _ in operands], operands)

        return self.tape.record(result, "cat", pieces, [], backward)

    # -- pointwise ------------------------------------------------------------------------------------------------
    def cast(self, x: Tensor, dtype: str) -> Tensor:
        if x.dtype == dtype:
            return x
        tape, shape, before = self.tape, x.shape, x.dtype
        result = tape.new("cast", shape, dtype, x)
        return tape.record(result, "to", [x], [], lambda g: [tape.new("gradient of cast", shape, before, g)])

    def add(self, a: Tensor, b: Operand, name: str = "sum") -> Tensor:
        """Sum or difference with broadcasting: the incoming gradient itself goes to both."""
        result = self.tape.new(name, broadcast(a.shape, b.shape), promoted(a.dtype, b.dtype), a)
        operands = [(a.shape, a.dtype), (b.shape, b.dtype)]
        needs = a.needs_grad, b.needs_grad

        def backward(g: Tensor) -> list[Gradient]:
            return self.fitted([g if need else None for need in needs], operands)

        return self.tape.record(result, "add", [a, b], [], backward)

    def add_in_place(self, a: Tensor, b: Tensor) -> Tensor:
        """``a += b``: no new memory; the incoming gradient goes to both."""
        result = Tensor(a.storage, a.shape, a.dtype)
        return self.tape.record(result, "add_", [a, b], [], lambda g: [g, g])

    def multiply(self, a: Operand, b: Operand, name: str = "product") -> Tensor:
        """Elementwise product with broadcasting: each factor is kept for the other's gradient."""
        tape = self.tape
        shape, dtype = broadcast(a.shape, b.shape), promoted(a.dtype, b.dtype)
        result = tape.new(name, shape, dtype, a if tuple(a.shape) == shape else b)
        operands = [(a.shape, a.dtype), (b.shape, b.dtype)]
        needs = a.needs_grad, b.needs_grad

        def backward(g: Tensor) -> list[Gradient]:
            whole: list[Gradient] = [tape.new("gradient of a factor", shape, dtype, g) if n else None for n in needs]
            return self.fitted(whole, operands)

        keep = [(f"{name}: factor", b if a.needs_grad else None), (f"{name}: factor", a if b.needs_grad else None)]
        return tape.record(result, "mul", [a, b], keep, backward)

    def pointwise(self, name: str, x: Tensor, keep: str = "input", makes: int = 1) -> Tensor:
        """A function of one tensor. ``keep``: input (silu, gelu, a power), output (tanh, sigmoid, relu) or nothing
        (a product with a number, a shift); ``makes``: tensors that its derivative makes on the way."""
        shape, dtype = x.shape, x.dtype
        result = self.tape.new(name, shape, dtype, x)
        kept = {"input": x, "output": result, "nothing": None}[keep]
        record = self.tape.record
        return record(result, name, [x], [(f"{name} {keep}", kept)],
                      lambda g: [self.chain(f"gradient of {name}", makes, shape, dtype, g)])  # fmt: skip

    def where(self, condition: Tensor | None, x: Tensor, name: str = "where") -> Tensor:
        """``torch.where(condition, x, number)`` or masked_fill: keeps the condition; the gradient is masked."""
        tape, shape, dtype = self.tape, x.shape, x.dtype
        result = tape.new(name, shape, dtype, x)
        return tape.record(result, name, [x], [(f"{name} condition", condition)],
                           lambda g: [tape.new(f"gradient of {name}", shape, dtype, g)])  # fmt: skip

    def scale(self, x: Tensor, name: str = "scaled") -> Tensor:
        """Product with a number, or negation."""
        return self.pointwise(name, x, "nothing")

    def shift(self, x: Tensor, name: str = "shifted") -> Tensor:
        """Sum with a number: the gradient passes through."""
        result = self.tape.new(name, x.shape, x.dtype, x)
        return self.tape.record(result, name, [x], [], lambda g: [g])

    def power(self, x: Tensor, name: str = "power") -> Tensor:
        """``grad * (n * x.pow(n - 1))``: three tensors on the way."""
        return self.pointwise(name, x, "input", makes=3)

    def mean(self, x: Tensor, name: str = "mean") -> Tensor:
        """Mean over the last dimension."""
        tape, shape, dtype = self.tape, x.shape, x.dtype
        result = tape.new(name, (*shape[:-1], 1), dtype)
        return tape.record(result, "mean", [x], [], lambda g: [tape.new(f"gradient of {name}", shape, dtype)])

    def softmax(self, x: Tensor, dtype: str | None = None, name: str = "softmax") -> Tensor:
        """Keeps its output; ``dtype`` casts before (also under autocast, which takes it to fp32)."""
        if dtype is None and self.autocast:
            dtype = "fp32" if "softmax" in self.device.autocast_to_fp32 else None
        return self.pointwise(name, self.cast(x, dtype or x.dtype), "output")

    def dropout(self, x: Tensor, p: float, name: str = "dropout") -> Tensor:
        """Keeps a mask: of bools where the device has the fused kernel, else the scaled noise."""
        if p == 0:
            return x
        tape, shape, dtype = self.tape, x.shape, x.dtype
        mask = tape.new(f"{name} mask", shape, "bool" if self.device.fused_dropout else dtype)
        result = tape.new(name, shape, dtype)
        return tape.record(result, "dropout", [x], [(f"{name} mask", mask)],
                           lambda g: [tape.new(f"gradient of {name}", shape, dtype)])  # fmt: skip

    # -- norms ----------------------------------------------------------------------------------------------------
    def layer_norm(self, x: Tensor, weight: Operand | None, bias: Operand | None, name: str) -> Tensor:
        """native_layer_norm: keeps its input, mean and rstd; backward makes all its gradients at once."""
        dtype = x.dtype
        if self.autocast and "layer_norm" in self.device.autocast_to_fp32:
            x = self.cast(x, "fp32")
        tape, shape, dtype = self.tape, x.shape, x.dtype
        rows = (*shape[:-1], 1)
        mixed = weight is not None and weight.dtype != dtype
        statistic = "fp32" if mixed or self.device.fp32_statistics else dtype
        result = tape.new(name, shape, dtype)
        mean, rstd = tape.new(f"{name} mean", rows, statistic), tape.new(f"{name} rstd", rows, statistic)
        needs = x.needs_grad

        def backward(_: Tensor) -> list[Gradient]:
            into = tape.new(f"gradient of {name}", shape, dtype) if needs else None
            wanted = [w if w is not None and w.needs_grad else None for w in (weight, bias)]
            return [into, *(tape.new("gradient of a weight", w.shape, w.dtype) if w else None for w in wanted)]

        keep = [(f"{name} input", x), (f"{name} mean", mean), (f"{name} rstd", rstd), (f"{name} weight", weight)]
        return tape.record(result, "layer_norm", [x, weight, bias], keep, backward)
