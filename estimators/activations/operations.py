"""The operations that blocks are written in: what each allocates, keeps for its derivative, and makes in backward.

Source of what is kept: torch/tools/autograd/derivatives.yaml and the autograd formulas beside it; checked against
``torch.autograd.graph.saved_tensors_hooks`` on the real modules.
"""

from __future__ import annotations

from collections.abc import Sequence

from estimators.activations.tape import Dim, Gradient, Tape, Tensor, Weight


class Operations:
    """Operations on one tape. ``autocast`` names the dtype that torch.autocast gives to matrix products, or is None."""

    def __init__(self, tape: Tape, autocast: str | None = None) -> None:
        self.tape, self.autocast = tape, autocast

    # -- shapes ---------------------------------------------------------------------------------------------------
    def view(self, x: Tensor, shape: Sequence[Dim]) -> Tensor:
        """reshape, transpose, split: the same storage."""
        tape = self.tape
        result = Tensor(x.storage, tuple(shape), x.dtype)
        before = x.shape
        return tape.record(result, "view", [x], [], lambda g: [Tensor(g.storage, before, g.dtype)])

    # -- pointwise ------------------------------------------------------------------------------------------------
    def add(self, a: Tensor, b: Tensor) -> Tensor:
        result = self.tape.new("sum", a.shape, a.dtype)
        return self.tape.record(result, "add", [a, b], [], lambda g: [g, g])

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        if x.dtype == dtype:
            return x
        tape, shape, before = self.tape, x.shape, x.dtype
        result = tape.new("cast", shape, dtype)
        return tape.record(result, "to", [x], [], lambda g: [tape.new("gradient of cast", shape, before)])

    def pointwise(self, name: str, x: Tensor, keep: str = "input") -> Tensor:
        """An activation function that keeps its input (silu, gelu) or its output (tanh, sigmoid, relu)."""
        tape, shape, dtype = self.tape, x.shape, x.dtype
        result = tape.new(name, shape, dtype)
        kept = x if keep == "input" else result
        return tape.record(result, name, [x], [(f"{name} {keep}", kept)], lambda g: [tape.new(f"gradient of {name}", shape, dtype)])

    def multiply(self, a: Tensor, b: Tensor, name: str = "product") -> Tensor:
        """Elementwise product: each factor is kept for the other's gradient."""
        tape, shape, dtype = self.tape, a.shape, a.dtype
        result = tape.new(name, shape, dtype)

        def backward(_: Tensor) -> list[Gradient]:
            left = tape.new("gradient of a factor", shape, dtype) if a_needs else None
            right = tape.new("gradient of a factor", shape, dtype) if b_needs else None
            return [left, right]

        a_needs, b_needs = a.needs_grad, b.needs_grad
        keep = [(f"{name} factor", b if a_needs else None), (f"{name} factor", a if b_needs else None)]
        return tape.record(result, "mul", [a, b], keep, backward)

    def scale(self, x: Tensor, name: str = "scaled", keep_input: bool = False) -> Tensor:
        """Product with a number, negation, shift: keeps nothing (a power keeps its input)."""
        tape, shape, dtype = self.tape, x.shape, x.dtype
        result = tape.new(name, shape, dtype)
        keep = [(f"{name} input", x)] if keep_input else []
        return tape.record(result, name, [x], keep, lambda g: [tape.new(f"gradient of {name}", shape, dtype)])

    def times_constant(self, x: Tensor, constant: Tensor, name: str = "product") -> Tensor:
        """Product with a tensor that no gradient flows to (rotary cosines, masks): only that tensor is kept."""
        tape, shape, dtype = self.tape, x.shape, x.dtype
        result = tape.new(name, shape, dtype)
        return tape.record(result, "mul", [x, constant], [(f"{name} constant", constant)],
                           lambda g: [tape.new("gradient of a factor", shape, dtype), None])  # fmt: skip

    def times_weight(self, weight: Weight, x: Tensor, name: str) -> Tensor:
        """Product with a vector that trains (a norm's weight): the other factor is kept for its gradient."""
        tape, shape, dtype = self.tape, x.shape, x.dtype
        result = tape.new(name, shape, dtype)

        def backward(_: Tensor) -> list[Gradient]:
            if weight.trainable:
                whole = tape.new("gradient of the weight, before its sum", shape, dtype)
                tape.weight_gradient(weight, weight.dtype)
                del whole
            return [None, tape.new(f"gradient of {name}", shape, dtype) if needs else None]

        needs = x.needs_grad
        return tape.record(result, "mul", [weight, x], [(name, x if weight.trainable else None)], backward)

    def multiply_rows(self, x: Tensor, rows: Tensor, name: str) -> Tensor:
        """Product with one number a row ([..., 1]): both are kept, the rows' gradient is a sum over a whole product."""
        tape, shape, dtype, narrow = self.tape, x.shape, x.dtype, rows.shape
        result = tape.new(name, shape, dtype)

        def backward(_: Tensor) -> list[Gradient]:
            into = tape.new(f"gradient of {name}", shape, dtype)
            whole = tape.new("gradient of the rows, before its sum", shape, dtype)
            summed = tape.new("gradient of the rows", narrow, dtype)
            del whole
            return [into, summed]

        needed = x.needs_grad
        keep = [(f"{name} rows", rows if needed else None), (f"{name} input", x if needed else None)]
        return tape.record(result, "mul", [x, rows], keep, backward)

    def row_statistic(self, x: Tensor, name: str) -> Tensor:
        """Mean over the last dimension."""
        tape, shape, dtype = self.tape, x.shape, x.dtype
        result = tape.new(name, (*shape[:-1], 1), dtype)
        return tape.record(result, "mean", [x], [], lambda g: [tape.new(f"gradient of {name}", shape, dtype)])

    def cat(self, pieces: Sequence[Tensor], shape: Sequence[Dim]) -> Tensor:
        """Concatenation: gradients are views of the incoming one."""
        result = self.tape.new("cat", shape, pieces[0].dtype)
        shapes = [p.shape for p in pieces]
        return self.tape.record(result, "cat", pieces, [], lambda g: [Tensor(g.storage, s, g.dtype) for s in shapes])

    # -- matrix products ------------------------------------------------------------------------------------------
    def linear(self, x: Tensor, weight: Weight, name: str, bias: Weight | None = None) -> Tensor:
        """``x @ weight.T``: keeps x when the weight trains; under autocast casts of x and of the weight."""
        dtype = self.autocast or weight.dtype
        x = self.cast(x, dtype)
        tape, shape = self.tape, x.shape
        copied = tape.new(f"{name} weight, cast", weight.shape, dtype) if weight.dtype != dtype else None
        result = tape.new(name, (*shape[:-1], weight.shape[0]), dtype)
        needs = x.needs_grad

        def backward(_: Tensor) -> list[Gradient]:
            into = tape.new(f"gradient of {name} input", shape, dtype) if needs else None
            if weight.trainable:
                tape.weight_gradient(weight, weight.dtype)
            return [into, None, None]

        keep = [(f"{name} input", x if weight.trainable else None), (f"{name} weight, cast", copied if needs else None)]
        return tape.record(result, "linear", [x, weight, bias], keep, backward)

    # -- attention ------------------------------------------------------------------------------------------------
    def sdpa(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Flash or memory-efficient attention over [B, heads, S, d]: keeps q, k, v, the output and its logsumexp."""
        tape = self.tape
        result = tape.new("attention output", q.shape, q.dtype)
        logsumexp = tape.new("logsumexp", q.shape[:3], "fp32")
        shapes = (q.shape, k.shape, v.shape)
        keep = [("k", k), ("q", q), ("v", v), ("logsumexp", logsumexp), ("attention output", result)]
        dtype = q.dtype

        def backward(_: Tensor) -> list[Gradient]:
            return [tape.new(f"gradient of {n}", s, dtype) for n, s in zip("qkv", shapes, strict=True)]

        return tape.record(result, "scaled_dot_product_attention", [q, k, v], keep, backward)
