"""Adapters on bare parameters (fused experts, routers): peft 0.21 ``ParamWrapper`` of peft/tuners/lora/layer.py.

The adapted parameter is made anew in every forward, whole: base + scaling * B A. It lives as long as the product that
keeps it, so that LoRA on experts costs a copy of all experts of a block, and its gradient another.
"""

from __future__ import annotations

from collections.abc import Callable

from estimators.activations.builder import Builder
from estimators.activations.tape import Gradient, Operand, Tensor, Weight
from estimators.values import NamedTuple


def parameter(b: Builder, module: str, name: str) -> Operand:
    """The parameter ``name`` of ``module``: bare, or merged with its adapter."""
    return entered(b, module, name).read()


class Entered(NamedTuple):
    """A parameter whose wrappers have been entered: factors are cast there, the merged whole is made where it is read
    (``nn.utils.parametrize.cached``). ``shape``: of the whole. Whoever holds this holds the factors, as the proxy does."""

    shape: tuple[int, ...]
    read: Callable[[], Operand]


def entered(b: Builder, module: str, name: str) -> Entered:
    """``ParamWrapper._activate_lora``."""
    depth = next(d for d in range(3) if f"{module}.{'base_layer.' * d}{name}" in b.parameters)
    weight = b.need(f"{module}.{'base_layer.' * depth}{name}")
    for wrapper in range(depth):
        stem = f"{module}.{'base_layer.' * wrapper}"
        down, up = b.weight(f"{stem}lora_A.default.weight"), b.weight(f"{stem}lora_B.default.weight")
        if down is not None and up is not None and (up.shape[0], down.shape[-1]) == weight.shape[-2:]:
            return Entered(weight.shape, (_matrix if len(weight.shape) == 2 else _stack)(b, weight, down, up))
    return Entered(weight.shape, lambda: weight)


def _stack(b: Builder, weight: Weight, down: Weight, up: Weight) -> Callable[[], Operand]:
    """``_LoraFactorsProxy``: ``baddbmm(W, B, A)``."""
    tape, dtype, shape = b.tape, weight.dtype, weight.shape
    left, right = _factor(b, up, dtype, copies=True), _factor(b, down, dtype)

    def backward(_: Tensor) -> list[Gradient]:
        made = [tape.new("gradient of a factor", factor.shape, dtype) for factor in (up, down, up, down)]
        return [made[0], made[1], None]

    def read() -> Operand:
        result = tape.new(f"{weight.name}, adapted", shape, dtype)
        keep = [("lora_B, cast", left), ("lora_A, cast", right)]
        return tape.record(result, "baddbmm", [left, right, weight], keep, backward)

    return read


def _matrix(b: Builder, weight: Weight, down: Weight, up: Weight) -> Callable[[], Operand]:
    """``_LoraParameterProxy``: ``W + (B A * scaling).to(W.dtype)``."""
    tape, shape = b.tape, weight.shape
    product = tape.new("B A", shape, up.dtype)

    def backward(g: Tensor) -> list[Gradient]:
        return [tape.new("gradient of lora_B", up.shape, g.dtype), tape.new("gradient of lora_A", down.shape, g.dtype)]

    tape.record(product, "mm", [up, down], [], backward)
    delta = b.cast(b.scale(product), weight.dtype)
    return lambda: b.add(delta, weight, f"{weight.name}, adapted")


def _factor(b: Builder, factor: Weight, dtype: str, copies: bool = False) -> Tensor:
    """``get_delta_factors``: an adapter's weight by expert, cast. Its view is older than all products: the gradient waits
    for these. ``copies``: B's turned back cannot be viewed as the weight."""
    tape, shape, own = b.tape, factor.shape, factor.dtype
    view = tape.new(f"{factor.name}, by expert", shape, own)
    tape.forget(view)
    tape.record(view, "view", [factor], [], lambda g: [tape.new("gradient of a factor", shape, own) if copies else g])
    return b.cast(view, dtype)
