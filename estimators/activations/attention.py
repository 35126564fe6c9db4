"""Attention as transformers dispatches it: eager, sdpa, flash; one function each, called with [B, heads, S, d]."""

from __future__ import annotations

from estimators.activations.products import Products
from estimators.activations.tape import Dim, Tensor
from estimators.values import dataclass


@dataclass(frozen=True, slots=True)
class Kernels:
    """Which implementation runs where a stack may choose; eager attention keeps what formula A.2 says."""

    attention: str = "sdpa"  # eager, sdpa, flash
    fused: bool = False  # Liger's norm, rotary, SwiGLU
    fused_in_place: bool = True  # Liger's norm overwrites the incoming gradient
    padding: str = "none"
    windowed: bool = False  # the sequence is longer than the attention window: sdpa needs a mask
    library: str = "transformers"  # whose modules run: litgpt writes its own
    keeps_quantised_input: bool = False  # bitsandbytes before 0.43.2 (pull request 1270)
    zeros_learn: bool = False  # zeros that T5's cross attention adds to its scores are a leaf that asks for a gradient


@dataclass(frozen=True, slots=True)
class Scores:
    """What a family does to attention scores beside scaling them. ``upcast``: softmax in fp32, then a cast back.
    ``in_fp32``: queries and keys are cast to fp32 before their product."""

    scaled: bool = True
    softcap: bool = False
    upcast: bool = True
    dropout: float = 0.0
    in_fp32: bool = False


class Attention(Products):
    """Attention on a tape."""

    kernels: Kernels
    kept_until_return: list[Tensor]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scores: Scores = Scores()) -> Tensor:
        """[B, heads, S, d] -> [B, S, heads, d]. ``mask``: numbers for eager, bools for sdpa, None where not needed."""
        if self.kernels.attention == "eager":
            return self.eager_attention(q, k, v, mask, scores)
        if self.kernels.attention == "sdpa" and (mask is not None or scores.softcap):
            return self.masked_sdpa(q, k, v, mask)
        return self.view(self.sdpa(q, k, v), self._by_token(q, v), swaps=True)

    @staticmethod
    def _by_token(q: Tensor, v: Tensor) -> tuple[Dim, ...]:
        batch, heads, seq, _ = q.shape
        return (batch, seq, heads, v.shape[-1])

    def eager_attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scores: Scores) -> Tensor:
        """``eager_attention_forward`` of modeling_llama.py and its relatives."""
        heads, dtype = q.shape[1], q.dtype
        keys, values = self.repeat_kv(k, heads), self.repeat_kv(v, heads)
        weights = self.scores(q, keys, scores)
        if mask is not None:
            weights = self.add(weights, mask, "masked scores")
        if scores.upcast or scores.in_fp32:  # one expression: the scores live until its end
            weights = self.cast(self.softmax(weights, "fp32", "attention softmax"), dtype)
        else:
            weights = self.softmax(weights, None, "attention softmax")
            weights = self.cast(weights, dtype)
        weights = self.dropout(weights, scores.dropout, "attention dropout")
        output = self.matmul(weights, values, (*q.shape[:-1], v.shape[-1]), "attention output")
        self.kept_until_return.append(weights)
        return self.contiguous(self.view(output, self._by_token(q, v), swaps=True))

    def scores(self, q: Tensor, keys: Tensor, scores: Scores) -> Tensor:
        """q k^T, scaled and capped."""
        if scores.in_fp32:
            q, keys = self.cast(q, "fp32"), self.cast(keys, "fp32")
        made = self.matmul(q, keys, (*q.shape[:-1], keys.shape[2]), "scores")
        if scores.scaled:
            made = self.scale(made, "scaled scores")
        if scores.softcap:
            made = self.scale(made, "scores / cap")
            made = self.pointwise("tanh", made, "output")
            made = self.scale(made, "capped scores")
        return made

    def masked_sdpa(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """With a mask sdpa leaves its causal and grouped paths: keys and values are repeated, and the mask becomes
        numbers of the query's dtype in every layer (aten ``convert_boolean_attn_mask``)."""
        heads = q.shape[1]
        k, v = self.repeat_kv(k, heads), self.repeat_kv(v, heads)
        bias = self.tape.new("mask as numbers", mask.shape, self.autocast or q.dtype) if mask is not None else None
        return self.view(self.sdpa(q, k, v, bias), self._by_token(q, v), swaps=True)

    def sdpa_by_parts(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Where no fused kernel takes it (a mask, and fewer heads of keys without ``enable_gqa``): everything in fp32,
        and the probabilities once more in the dtype of the query, which nobody reads.

        aten/src/ATen/native/transformers/attention.cpp ``_scaled_dot_product_attention_math``,
        aten/src/ATen/native/SoftMax.cpp ``_safe_softmax``.
        """
        given = [self.cast(t, self.autocast or t.dtype) for t in (q, k, v)]
        autocast, self.autocast = self.autocast, None  # which has done its part by then
        q, k, v = given
        tape, dtype, heads = self.tape, q.dtype, q.shape[1]
        bias = tape.new("mask as numbers", mask.shape, dtype)
        q, k, v = self.cast(q, "fp32"), self.cast(k, "fp32"), self.cast(v, "fp32")
        left = self.scale(q, "scaled q")
        scores = self.matmul(left, self.repeat_kv(self.scale(k), heads), (*q.shape[:-1], k.shape[2]), "scores")
        scores = self._safe_softmax(scores)
        copy = tape.new("probabilities", scores.shape, dtype)
        output = self.cast(self.matmul(scores, self.repeat_kv(v, heads), (*q.shape[:-1], v.shape[-1]), "output"), dtype)
        del bias, copy, given
        self.autocast = autocast
        return output

    def _safe_softmax(self, x: Tensor) -> Tensor:
        """Softmax, then zeros in rows that are masked as a whole: its own result is what is kept."""
        tape, shape, dtype = self.tape, x.shape, x.dtype
        made, masked = tape.new("softmax", shape, dtype), tape.new("masked scores", shape, "bool")
        result = tape.new("attention softmax", shape, dtype)
        del made, masked
        return tape.record(result, "_safe_softmax", [x], [("_safe_softmax output", result)],
                           lambda g: [tape.new("gradient of scores", shape, dtype)])  # fmt: skip
