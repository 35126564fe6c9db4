"""Liger's kernels on a tape, after liger_kernel/ops: rms_norm.py, rope.py, swiglu.py, geglu.py.

The kernels run on GPUs only; the autograd functions around them, which make and keep every tensor, are compared on a CPU
with kernels that do nothing (liger-kernel 0.8.2).
"""

from __future__ import annotations

from estimators.activations.operations import Operations
from estimators.activations.tape import Gradient, Tensor, Weight

# monkey_patch.py of liger-kernel 0.8.2: families that it knows; the rest runs as it is.
FAMILIES = frozenset({
    "deepseek_v3", "gemma", "gemma2", "gemma3", "gemma3_text", "glm4", "gpt_oss", "granite", "internvl", "llama",
    "llama4_text", "llava", "ministral", "ministral3", "mistral", "mistral3", "mixtral", "mllama", "nemotron", "olmo2",
    "olmo3", "paligemma", "phi3", "qwen2", "qwen2_5_vl", "qwen2_vl", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl",
    "smollm3",
})  # fmt: skip
# Families whose norms make a gradient of their own, because the incoming one is needed once more.
APART = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4", "olmo2", "olmo3", "qwen3_next"})


def norm(b: Operations, x: Tensor, weight: Weight, name: str, in_place: bool = True) -> Tensor:
    """LigerRMSNormFunction: keeps its input and one fp32 number a row; ``in_place``: its gradient overwrites the incoming
    one."""
    tape, rows, shape, dtype = b.tape, (*x.shape[:-1], 1), x.shape, x.dtype
    if x.strided:
        x = b.contiguous(x)
    result = tape.new(name, x.shape, x.dtype, x)
    rstd = tape.new(f"{name} rstd", rows, "fp32")

    def backward(g: Tensor) -> list[Gradient]:
        partial = tape.new("gradient of a weight, by programs", weight.shape, "fp32")  # made of a frozen weight, too
        summed = tape.new("gradient of a weight, summed", weight.shape, "fp32")
        into_weight = tape.new("gradient of a weight", weight.shape, weight.dtype)
        del partial, summed
        into = Tensor(g.storage, g.shape, g.dtype) if in_place else tape.new(f"gradient of {name}", shape, dtype)
        into.strided = g.strided
        return [into, into_weight if weight.trainable else None]

    return tape.record(result, "liger rms_norm", [x, weight], [(f"{name} input", x), (f"{name} rstd", rstd)], backward)


def rotary(b: Operations, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """LigerRopeFunction: turns heads in place, forwards and backwards; keeps the cosines and sines. Heads that are slices
    of one product, or do not lie by tokens, are copied first."""

    def turned(x: Tensor) -> Tensor:
        if x.storage.size != x.size or not x.strided:
            x = copied(b, x)
            x.strided = True
        result = Tensor(x.storage, x.shape, x.dtype)
        result.strided = x.strided
        return b.tape.record(result, "liger rope", [x], [("cos", cos), ("sin", sin)], lambda g: [g])

    return turned(q), turned(k)


def copied(b: Operations, x: Tensor) -> Tensor:
    """``contiguous`` of a slice, in the order of tokens."""
    made, strided = b.contiguous(x), x.strided
    made.strided = strided
    return made


def gate(b: Operations, gated: Tensor, up: Tensor) -> Tensor:
    """LigerSiLUMulFunction and LigerGELUMulFunction: keep both inputs, and overwrite them with their gradients."""
    tape = b.tape
    if gated.storage is up.storage:
        gated, up = copied(b, gated), copied(b, up)
    result = tape.new("act x up", up.shape, up.dtype)
    kept = [gated.storage, up.storage]
    shape, dtype = up.shape, up.dtype

    def backward(_: Tensor) -> list[Gradient]:
        made: list[Gradient] = [Tensor(storage, shape, dtype) for storage in kept]
        kept.clear()
        return made

    return tape.record(result, "liger act_mul", [gated, up], [("gate", gated), ("up", up)], backward)
