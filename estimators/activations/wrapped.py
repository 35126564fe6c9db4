"""Adapters on bare parameters (fused experts, routers): peft 0.21 ``ParamWrapper`` of peft/tuners/lora/layer.py.

The adapted parameter is made anew in every forward, whole: base + scaling * B A. It lives as long as the product that
keeps it, so that LoRA on experts costs a copy of all experts of a block, and its gradient another.
"""

from __future__ import annotations

from estimators.activations.builder import Builder
from estimators.activations.tape import Gradient, Operand, Tensor, Weight


def parameter(b: Builder, module: str, name: str) -> Operand:
    """The parameter ``name`` of ``module``: bare, or merged with its adapter."""
    depth = next(d for d in range(3) if f"{module}.{'base_layer.' * d}{name}" in b.parameters)
    weight = b.need(f"{module}.{'base_layer.' * depth}{name}")
    for wrapper in range(depth):
        stem = f"{module}.{'base_layer.' * wrapper}"
        down, up = b.weight(f"{stem}lora_A.default.weight"), b.weight(f"{stem}lora_B.default.weight")
        if down is not None and up is not None and (up.shape[0], down.shape[-1]) == weight.shape[-2:]:
            return merged(b, weight, down, up)
    return weight


def merged(b: Builder, weight: Weight, down: Weight, up: Weight) -> Tensor:
    """``_LoraFactorsProxy`` for a stack of experts, ``_LoraParameterProxy`` for one matrix."""
    if len(weight.shape) == 2:
        return _matrix(b, weight, down, up)
    tape, dtype, shape = b.tape, weight.dtype, weight.shape
    left, right = _cast(b, up, dtype), _cast(b, down, dtype)
    result = tape.new(f"{weight.name}, adapted", shape, dtype)

    def backward(_: Tensor) -> list[Gradient]:
        made = [tape.new("gradient of a factor", factor.shape, dtype) for factor in (up, down, up, down)]
        return [made[0], made[1], None]

    keep = [("lora_B, cast", left), ("lora_A, cast", right)]
    return tape.record(result, "baddbmm", [left, right, weight], keep, backward)


def _matrix(b: Builder, weight: Weight, down: Weight, up: Weight) -> Tensor:
    """``W + (B A * scaling).to(W.dtype)``."""
    tape, shape = b.tape, weight.shape
    product = tape.new("B A", shape, up.dtype)

    def backward(g: Tensor) -> list[Gradient]:
        return [tape.new("gradient of lora_B", up.shape, g.dtype), tape.new("gradient of lora_A", down.shape, g.dtype)]

    tape.record(product, "mm", [up, down], [], backward)
    delta = b.cast(b.scale(product), weight.dtype)
    return b.add(delta, weight, f"{weight.name}, adapted")


def _cast(b: Builder, factor: Weight, dtype: str) -> Operand:
    if factor.dtype == dtype:
        return factor
    tape = b.tape
    result = tape.new(f"{factor.name}, cast", factor.shape, dtype)
    return tape.record(result, "to", [factor], [],
                       lambda g: [tape.new("gradient of a factor, cast", factor.shape, factor.dtype)])  # fmt: skip
