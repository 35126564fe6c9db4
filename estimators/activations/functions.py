"""Norms, activation functions and rotary embeddings as transformers writes them, out of operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimators.activations import fused
from estimators.activations.attention import Attention
from estimators.activations.tape import Dim, Operand, Tensor, Weight

Norm = Callable[[Any, Tensor, str], Tensor]


def module(norm: Norm) -> Norm:
    """A norm whose name is the path of its module. Only the norm itself holds what it is given."""

    def visited(self: Functions, x: Tensor, name: str) -> Tensor:
        box = [x]
        del x
        with self.tape.inside(name):
            return norm(self, box.pop(), name)

    return visited


class Functions(Attention):
    """Functions that several families share. A subclass knows the weights."""

    def weight(self, name: str) -> Weight | None:
        raise NotImplementedError

    def need(self, name: str) -> Weight:
        raise NotImplementedError

    # -- norms ----------------------------------------------------------------------------------------------------
    @module
    def rms_norm(self, x: Tensor, name: str) -> Tensor:
        """LlamaRMSNorm: fp32 inside; keeps the upcast input, the rows' rsqrt and the normalised rows."""
        if self.kernels.fused:
            return fused.norm(self, x, self.need(f"{name}.weight"), name, self.kernels.fused_in_place)
        dtype = x.dtype
        x, _variance = self.rms_rows(x, name)  # both live until the return
        return self.multiply(self.need(f"{name}.weight"), self.cast(x, dtype), f"{name} normalised")

    @module
    def rms_norm_cast_last(self, x: Tensor, name: str) -> Tensor:
        """Olmo2RMSNorm: the weight multiplies in fp32."""
        if self.kernels.fused:
            return fused.norm(self, x, self.need(f"{name}.weight"), name, self.kernels.fused_in_place)
        dtype = x.dtype
        x, _variance = self.rms_rows(x, name)
        return self.cast(self.multiply(self.need(f"{name}.weight"), x, f"{name} normalised"), dtype)

    @module
    def rms_norm_in_fp32(self, x: Tensor, name: str) -> Tensor:
        """HeliumRMSNorm: the weight is cast up and multiplies in fp32."""
        dtype = x.dtype
        x, _variance = self.rms_rows(x, name)
        weight = self.upcast(self.need(f"{name}.weight"))
        return self.cast(self.multiply(weight, x, f"{name} normalised"), dtype)

    def upcast(self, weight: Weight) -> Operand:
        """A weight cast to fp32 for a norm."""
        if weight.dtype == "fp32":
            return weight
        tape, shape, before = self.tape, weight.shape, weight.dtype
        made = tape.new(f"{weight.name}, upcast", shape, "fp32")
        return tape.record(made, "to", [weight], [], lambda g: [tape.new("gradient, cast", shape, before)])

    @module
    def gemma_norm(self, x: Tensor, name: str) -> Tensor:
        """GemmaRMSNorm: (1 + weight) multiplies in fp32."""
        weight, tape = self.need(f"{name}.weight"), self.tape
        if self.kernels.fused:
            return fused.norm(self, x, weight, name, self.kernels.fused_in_place)
        output = self.rms_rows(x, name)[0]
        shape, before = weight.shape, weight.dtype
        one_more = tape.new(f"1 + {name} weight", shape, "fp32")
        made = tape.record(one_more, "to", [weight], [], lambda g: [tape.new("gradient, cast", shape, before)])
        output = self.multiply(output, made, f"{name} normalised")
        return self.cast(output, x.dtype)

    def rms_rows(self, x: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Rows in fp32 divided by their root mean square, and its square."""
        x = self.cast(x, "fp32")
        variance = self.mean(self.power(x, f"{name} upcast"), f"{name} variance")
        return self.multiply(x, self.rsqrt(self.shift(variance), name), f"{name} normalised"), variance

    def rsqrt(self, x: Tensor, name: str) -> Tensor:
        """``-0.5 * grad * result.pow(3)``: three tensors on the way."""
        return self.pointwise(f"{name} rsqrt", x, "output", makes=3)

    @module
    def norm(self, x: Tensor, name: str) -> Tensor:
        """nn.LayerNorm."""
        return self.layer_norm(x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias"), name)

    @module
    def norm_1p(self, x: Tensor, name: str) -> Tensor:
        """NemotronLayerNorm1P: weight + 1; under autocast its input is cast to 16 bit."""
        weight, bias, tape = self.need(f"{name}.weight"), self.weight(f"{name}.bias"), self.tape
        shifted = tape.new(f"{name} weight + 1", weight.shape, weight.dtype)
        factor = tape.record(shifted, "add", [weight], [], lambda g: [g])
        return self.layer_norm(x, factor, bias, name)

    def norms_of_heads(self, x: Tensor, name: str) -> Tensor:
        """StableLmLayerNormPerHead: a LayerNorm for each head, on [B, heads, S, d]."""
        name = name.replace("_norm", "_layernorm")
        heads = int(x.shape[1])
        pieces = self.split(x, [(x.shape[0], 1, *x.shape[2:])] * heads)
        return self.cat([self.norm(p, f"{name}.norms.{i}") for i, p in enumerate(pieces)], x.shape)

    @module
    def cohere_norm(self, x: Tensor, name: str) -> Tensor:
        """CohereLayerNorm: mean and variance by hand, in fp32."""
        dtype, weight = x.dtype, self.need(f"{name}.weight")
        x = self.cast(x, "fp32")
        mean = self.mean(x, f"{name} mean")
        variance = self.mean(self.power(self.add(x, mean), f"{name} centred"), f"{name} variance")
        x = self.multiply(self.add(x, mean), self.rsqrt(self.shift(variance), name), f"{name} normalised")
        factor = self.upcast(weight)
        return self.cast(self.multiply(factor, x, f"{name} normalised"), dtype)

    # -- activation functions ---------------------------------------------------------------------------------------
    def activation(self, name: str, x: Tensor) -> Tensor:
        """ACT2FN of transformers/activations.py."""
        if name in COMPOSED:
            return COMPOSED[name](self, x)
        return self.pointwise(name, x, "output" if name in ("relu", "tanh", "sigmoid") else "input")

    def gelu_new(self, x: Tensor) -> Tensor:
        """``0.5 * x * (1 + tanh(c * (x + 0.044715 * x.pow(3))))``, operation by operation."""
        return self.multiply(
            self.scale(x, "half"),
            self.shift(self.pointwise("tanh", self.scale(self.add(x, self.scale(self.power(x)))), "output")),
            "gelu_new",
        )

    def gelu_fast(self, x: Tensor) -> Tensor:
        """``0.5 * x * (1 + tanh(x * c * (1 + 0.044715 * x * x)))``, operation by operation."""
        return self.multiply(
            self.scale(x, "half"),
            self.shift(
                self.pointwise(
                    "tanh",
                    self.multiply(self.scale(x), self.shift(self.multiply(self.scale(x), x, "x x")), "gelu_fast"),
                    "output",
                )
            ),
            "gelu_fast",
        )

    def quick_gelu(self, x: Tensor) -> Tensor:
        return self.multiply(x, self.pointwise("sigmoid", self.scale(x), "output"), "quick_gelu")

    def relu_squared(self, x: Tensor) -> Tensor:
        return self.power(self.pointwise("relu", x, "output"), "square")

    # -- rotary embeddings ------------------------------------------------------------------------------------------
    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sliced: bool = False) -> tuple[Tensor, Tensor]:
        """apply_rotary_pos_emb: keeps the cosines and sines only. Heads that are wider than the cosines turn in part;
        ``sliced``: the family slices and joins them even where they turn as a whole."""
        if self.kernels.fused and cos.shape[-1] == q.shape[-1]:
            return fused.rotary(self, q, k, cos, sin)
        q_embed = self.rotated(q, cos, sin, sliced)
        k_embed = self.rotated(k, cos, sin, sliced)
        return q_embed, k_embed

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor, sliced: bool = False) -> Tensor:
        size, turns = int(x.shape[-1]), int(cos.shape[-1])
        if size == turns and not sliced:
            return self.add(self.multiply(x, cos), self.multiply(self.rotate_half(x), sin))
        turning = self.narrow(x, (*x.shape[:-1], turns)) if turns < size else x
        resting = self.narrow(x, (*x.shape[:-1], size - turns))
        return self.cat([self.rotated(turning, cos, sin), resting], x.shape)

    def rotate_half(self, x: Tensor) -> Tensor:
        """Halves, or even and odd elements, exchanged with a sign."""
        half: tuple[Dim, ...] = (*x.shape[:-1], int(x.shape[-1]) // 2)
        x1, x2 = self.narrow(x, half), self.narrow(x, half)
        return self.cat([self.scale(x2, "negated half"), x1], x.shape)


COMPOSED: dict[str, Callable[[Functions, Tensor], Tensor]] = {
    "gelu_new": Functions.gelu_new,
    "gelu_fast": Functions.gelu_fast,
    "quick_gelu": Functions.quick_gelu,
    "relu2": Functions.relu_squared,
}
