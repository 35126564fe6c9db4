"""Linear layers as a method made them: LoRA and DoRA (peft 0.21), 4-bit and 8-bit bases (bitsandbytes 0.50)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimators.activations.litgpt import lora_linear
from estimators.activations.operations import promoted
from estimators.activations.tape import Gradient, Tensor, Weight
from estimators.model.methods.quantised import BLOCK_4BIT
from estimators.model.spec import Parameter

if TYPE_CHECKING:
    from estimators.activations.builder import Builder


def adapted(b: Builder, x: Tensor, name: str) -> Tensor:
    """``Linear.forward`` of peft/tuners/lora/layer.py and bnb.py: base(x) + B(A(x)) * scaling, in the base's dtype."""
    if b.kernels.library == "litgpt":
        return lora_linear(b, x, name)
    result = b.base(x, f"{name}.base_layer")
    dtype = result.dtype
    four_bit = b.parameters[f"{name}.base_layer.weight"].dtype == "uint8"
    if four_bit:  # ``result.clone()``
        result = b.contiguous(result)
    down, up = b.need(f"{name}.lora_A.default.weight"), b.need(f"{name}.lora_B.default.weight")
    if not (four_bit and b.autocast):
        x = b.cast(x, b.precision.adapters or down.dtype)
    magnitude = b.weight(f"{name}.lora_magnitude_vector.default.weight")
    if magnitude is not None:
        return b.cast(b.add(result, dora(b, x, result, name, down, up, magnitude)), dtype)
    with b.tape.inside(f"{name}.lora_A.default"):
        narrow = [b.linear(x, down, f"{name}.lora_A")]
    with b.tape.inside(f"{name}.lora_B.default"):
        wide = [b.linear(narrow.pop(), up, f"{name}.lora_B")]
    output = b.scale(wide.pop(), "scaled")
    if four_bit and not b.autocast:
        output = b.cast(output, dtype)
    result = b.add(result, output)
    del output
    return b.cast(result, dtype)


def dora(b: Builder, x: Tensor, result: Tensor, name: str, down: Weight, up: Weight, magnitude: Weight) -> Tensor:
    """``DoraLinearLayer.forward`` of peft/tuners/lora/dora.py: the whole B A is made to take the norm of the sum."""
    tape, base = b.tape, b.need(f"{name}.base_layer.weight")
    eye = tape.new("identity", (down.shape[1], down.shape[1]), down.dtype)
    whole = b.linear(b.linear(eye, down, f"{name}.lora_A of identity"), up, f"{name}.lora_B of identity")
    del eye
    whole = b.cast(whole, x.dtype)  # its graph lives as long as this name; no gradient flows through it
    weight = tape.new("base weight, cast", base.shape, x.dtype) if base.dtype != x.dtype else None
    scaled = tape.new("scaled B A", base.shape, whole.dtype)
    both = tape.new("base + scaled B A", base.shape, whole.dtype)
    del scaled
    norm = tape.new("norm", (base.shape[0],), x.dtype)
    del both
    shape, dtype = magnitude.shape, promoted(magnitude.dtype, norm.dtype)
    factor = tape.new("magnitude / norm", shape, dtype)
    tape.record(
        factor, "div", [magnitude], [("norm", norm)], lambda g: [tape.new("gradient of magnitude", shape, dtype)]
    )
    lora_result = b.linear(b.linear(x, down, f"{name}.lora_A"), up, f"{name}.lora_B")
    left = b.multiply(b.shift(factor), result, "magnitude x base")
    result = b.add(left, b.scale(b.multiply(factor, lora_result, "magnitude x lora")))
    del weight, whole, left
    return result


def quantised(b: Builder, x: Tensor, parameter: Parameter, bias: Weight | None) -> Tensor:
    """A product with a packed weight (bitsandbytes/autograd/_functions.py): the packed weight is kept and nothing else;
    backward makes the whole weight in 16 bit, and so does the forward of 4-bit weights where the device needs it."""
    before = x.dtype
    x = b.cast(x, b.dtype)
    tape, shape, dtype, name = b.tape, x.shape, x.dtype, parameter.name
    rows, columns = parameter.shape[::-1] if parameter.kind == "conv1d" else parameter.shape

    def whole() -> list[Tensor]:
        scales = tape.new(f"{name} scales", (-(-rows * columns // BLOCK_4BIT),), "fp32")
        return [scales, tape.new(f"{name}, dequantised", (rows, columns), dtype)]

    transient: list[Tensor] = []
    if parameter.dtype == "int8":  # LLM.int8: rows in 8 bit, the product in 32
        transient = [tape.new("rows in 8 bit", shape, "int8"), tape.new("product, int32", (*shape[:-1], rows), "fp32")]
    elif b.device.dequantises:
        transient = whole()
    result = tape.new(name, (*shape[:-1], rows), dtype)
    transient.clear()

    def backward(_: Tensor) -> list[Gradient]:
        weight = whole()
        into = tape.new(f"gradient of {name} input", shape, dtype)
        weight.clear()
        return [into]

    old = b.kernels.keeps_quantised_input and parameter.dtype != "int8"
    tape.record(result, "quantised product", [x], [("input of a 4-bit product", x if old else None)], backward)
    return b.cast(result, before)
