"""Frames that blocks of mixtures share: pre-norm with two sublayers, attention with norms on its heads."""

from __future__ import annotations

from collections.abc import Callable

from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor

Sublayer = Callable[[Builder, Tensor], Tensor]


def pre_norm(b: Builder, hidden: Tensor, attention: Sublayer, feed_forward: Sublayer) -> Tensor:
    """x + attention(norm(x)), then x + feed_forward(norm(x)): every relative of LlamaDecoderLayer."""
    residual = hidden
    hidden = b.rms_norm(hidden, "input_layernorm")
    hidden = attention(b, hidden)
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.rms_norm(hidden, "post_attention_layernorm")
    hidden = feed_forward(b, hidden)
    return b.add(residual, hidden)


def normed_attention(b: Builder, hidden: Tensor) -> Tensor:
    """Qwen3MoeAttention: RMS norms over the features of each head, before the rotation."""
    size = b.number("head_dim", b.number("hidden_size") // b.number("num_attention_heads"))
    q = b.rms_norm(b.heads(hidden, "self_attn.q_proj", size), "self_attn.q_norm")
    k = b.rms_norm(b.heads(hidden, "self_attn.k_proj", size), "self_attn.k_norm")
    v = b.heads(hidden, "self_attn.v_proj", size)
    q, k = b.rotary(q, k, *b.tables(size))
    output = b.attend(q, k, v, b.mask())
    return b.module(b.view(output, ("B", "S", int(q.shape[1]) * size)), "self_attn.o_proj")
