"""Liger's kernels on a tape, after liger_kernel/ops: rms_norm.py, rope.py, swiglu.py, geglu.py. They run on GPUs only,
so what stands here follows their autograd functions and is compared with nothing."""

from __future__ import annotations

from estimators.activations.operations import Operations
from estimators.activations.tape import Gradient, Tensor, Weight


def norm(b: Operations, x: Tensor, weight: Weight, name: str) -> Tensor:
    """LigerRMSNormFunction: keeps its input and one fp32 number a row; its gradient overwrites the incoming one."""
    tape, rows = b.tape, (*x.shape[:-1], 1)
    result = tape.new(name, x.shape, x.dtype, x)
    rstd = tape.new(f"{name} rstd", rows, "fp32")

    def backward(g: Tensor) -> list[Gradient]:
        into_weight = tape.new("gradient of a weight", weight.shape, weight.dtype) if weight.trainable else None
        into = Tensor(g.storage, g.shape, g.dtype)
        into.strided = g.strided
        return [into, into_weight]

    return tape.record(result, "liger rms_norm", [x, weight], [(f"{name} input", x), (f"{name} rstd", rstd)], backward)


def rotary(b: Operations, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """LigerRopeFunction: turns heads in place, forwards and backwards; keeps the cosines and sines."""

    def turned(x: Tensor) -> Tensor:
        result = Tensor(x.storage, x.shape, x.dtype)
        result.strided = x.strided
        return b.tape.record(result, "liger rope", [x], [("cos", cos), ("sin", sin)], lambda g: [g])

    return turned(q), turned(k)


def gate(b: Operations, gated: Tensor, up: Tensor) -> Tensor:
    """LigerSiLUMulFunction and LigerGELUMulFunction: keep both inputs, and overwrite them with their gradients."""
    tape = b.tape
    result = tape.new("act x up", up.shape, up.dtype)
    kept = [gated.storage, up.storage]
    shape, dtype = up.shape, up.dtype

    def backward(_: Tensor) -> list[Gradient]:
        made: list[Gradient] = [Tensor(storage, shape, dtype) for storage in kept]
        kept.clear()
        return made

    return tape.record(result, "liger act_mul", [gated, up], [("gate", gated), ("up", up)], backward)
