"""Matrix products and attention on a tape."""

from __future__ import annotations

from collections.abc import Sequence

from estimators.activations.operations import Operations
from estimators.activations.tape import Dim, Gradient, Operand, Tape, Tensor, Weight


class Products(Operations):
    """Operations that torch.autocast runs in 16 bit."""

    def __init__(self, tape: Tape, *args: object, **kwargs: object) -> None:
        super().__init__(tape, *args, **kwargs)  # type: ignore[arg-type]
        self.cached: dict[str, Tensor] = {}  # copies of weights that autocast makes once and holds until it ends

    # -- linear ---------------------------------------------------------------------------------------------------
    def weight_for_product(self, weight: Weight) -> Operand:
        """The weight in the dtype of the product: autocast's copy, held until the end of the forward if it trains."""
        if not self.autocast or weight.dtype == self.autocast:
            return weight
        if weight.name in self.cached:
            return self.cached[weight.name]
        tape, shape, before = self.tape, weight.shape, weight.dtype
        copy = tape.new(f"{weight.name}, cast", shape, self.autocast)
        tape.record(copy, "to", [weight], [], lambda g: [tape.new("gradient of a weight, cast", shape, before)])
        if weight.trainable and weight.dtype == "fp32":
            self.cached[weight.name] = copy
        return copy

    def linear(
        self, x: Tensor, weight: Weight, name: str, bias: Weight | None = None, transposed: bool = False
    ) -> Tensor:
        """``x @ weight.T + bias``. Keeps x when the weight trains, the weight (or its copy) when x needs a gradient.

        ``transposed``: Conv1D, whose weight is [in, out]. Autocast casts the last argument first (as gcc evaluates the
        arguments of a call; aten/src/ATen/autocast_mode.h), so in backward the input's gradient is cast before the
        weight's.
        """
        used_bias = self.weight_for_product(bias) if bias is not None else None
        used = self.weight_for_product(weight)
        x = self.cast(x, self.autocast or x.dtype)
        width = weight.shape[1 if transposed else 0]
        return self.product(x, used, (*x.shape[:-1], width), name, used_bias)

    def product(
        self, x: Tensor, weight: Operand, out: tuple[Dim, ...], name: str, bias: Operand | None = None
    ) -> Tensor:
        """mm or addmm over rows: in backward the weight's gradient is made first, then the input's, then the bias's."""
        tape, shape, dtype = self.tape, x.shape, x.dtype
        result = tape.new(name, out, dtype)
        needs = x.needs_grad

        def backward(_: Tensor) -> list[Gradient]:
            into_weight = tape.new(f"gradient of {name} weight", weight.shape, dtype) if weight.needs_grad else None
            into = tape.new(f"gradient of {name} input", shape, dtype) if needs else None
            into_bias = None
            if bias is not None and bias.needs_grad:
                into_bias = tape.new(f"gradient of {name} bias", bias.shape, dtype)
            viewed = Tensor(into.storage, shape, dtype, base=into) if into is not None and len(shape) > 2 else into
            return [viewed, into_weight, into_bias]

        keep = [(f"{name} input", x if weight.needs_grad else None), (f"{name} weight", weight if needs else None)]
        return tape.record(result, "linear", [x, weight, bias], keep, backward)

    def matmul(self, a: Tensor, b: Tensor, shape: Sequence[Dim], name: str, scaled: bool = False) -> Tensor:
        """Batched product of two activations: each is kept for the other's gradient, contiguous.

        ``scaled``: baddbmm, whose alpha multiplies each gradient into another tensor.
        """
        a, b = self.cast(a, self.autocast or a.dtype), self.cast(b, self.autocast or b.dtype)
        a, b = (self.contiguous(t) if t.strided else t for t in (a, b))
        tape, shapes, dtype = self.tape, (a.shape, b.shape), a.dtype
        result = tape.new(name, shape, dtype)
        needs = a.needs_grad, b.needs_grad

        def backward(_: Tensor) -> list[Gradient]:
            made = [
                tape.new(f"gradient of {name}", s, dtype) if n else None for s, n in zip(shapes, needs, strict=True)
            ]
            if scaled:
                made = [t and tape.new(f"gradient of {name}, scaled", t.shape, dtype) for t in made]
            return [t and Tensor(t.storage, t.shape, dtype, base=t) for t in made]

        keep = [(f"{name}: left", a if b.needs_grad else None), (f"{name}: right", b if a.needs_grad else None)]
        return self.view(tape.record(result, "bmm", [a, b], keep, backward), shape)

    # -- attention ------------------------------------------------------------------------------------------------
    def sdpa(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Flash or memory-efficient attention over [B, heads, S, d]: keeps q, k, v, the output and its logsumexp.

        On CUDA the flash kernel's backward accumulates dq in fp32, dk and dv for every query head, and a sum for each
        row (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp ``mha_bwd``).
        """
        q, k, v = (self.cast(t, self.autocast or t.dtype) for t in (q, k, v))
        tape, dtype, device = self.tape, q.dtype, self.device
        result = tape.new("attention output", (*q.shape[:-1], v.shape[-1]), dtype)
        result.strided = q.strided
        logsumexp = tape.new("logsumexp", q.shape[:3], "fp32")
        state = tape.new("random state", (device.flash_rng_bytes,), "uint8") if device.flash_rng_bytes else None
        shapes = (q.shape, k.shape, v.shape)
        needs = [t.needs_grad for t in (q, k, v)]
        layouts = [t.strided for t in (q, k, v)]

        def backward(_: Tensor) -> list[Gradient]:
            made = [tape.new(f"gradient of {n}", s, dtype) for n, s in zip("qkv", shapes, strict=True)]
            if device.flash_workspace:
                workspace = [
                    tape.new("dq, accumulated", shapes[0], "fp32"),
                    tape.new("row sums", shapes[0][:3], "fp32"),
                ]
                if shapes[1][1] != shapes[0][1]:
                    workspace += [tape.new("dk or dv of every head", shapes[0], dtype) for _ in range(2)]
                workspace.clear()
            for gradient, strided in zip(made, layouts, strict=True):
                gradient.strided = strided
            return [t if n else None for t, n in zip(made, needs, strict=True)]

        keep: list[tuple[str, Operand | None]] = [
            ("q", q), ("k", k), ("v", v), ("mask", mask), ("attention output", result), ("logsumexp", logsumexp),
            ("random state", state),
        ]  # fmt: skip
        return tape.record(result, "scaled_dot_product_attention", [q, k, v], keep, backward)

    def repeat_kv(self, x: Tensor, heads: Dim) -> Tensor:
        """Each key or value head copied for every query head of its group; in backward a sum over the copies."""
        if x.shape[1] == heads:
            return x
        tape, before, shape = self.tape, x.shape, (x.shape[0], heads, *x.shape[2:])
        if x.shape[1] == 1:  # one head expands without a copy; a product copies it later
            result = Tensor(x.storage, shape, x.dtype, base=x.base or x)
            result.strided = True
        else:
            result = tape.new("repeated heads", shape, x.dtype)
        return tape.record(
            result, "repeat_kv", [x], [], lambda g: [tape.new("gradient of repeated heads", before, g.dtype)]
        )
