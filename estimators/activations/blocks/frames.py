"""Frames that the blocks of mixtures share."""

from __future__ import annotations

from collections.abc import Callable

from estimators.activations.blocks import pieces
from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor

Sublayer = Callable[[Builder, Tensor], Tensor]


def pre_norm(b: Builder, hidden: Tensor, attention: Sublayer, feed_forward: Sublayer, scaled: bool = False) -> Tensor:
    """x + attention(norm(x)), then x + feed_forward(norm(x)): every relative of LlamaDecoderLayer.

    ``scaled``: both branches are multiplied by a number.
    """
    residual = hidden
    hidden = b.rms_norm(hidden, "input_layernorm")
    hidden = attention(b, hidden)
    hidden = b.add(residual, b.scale(hidden) if scaled else hidden)

    residual = hidden
    hidden = b.rms_norm(hidden, "post_attention_layernorm")
    hidden = feed_forward(b, hidden)
    return b.add(residual, b.scale(hidden) if scaled else hidden)


def plain_attention(b: Builder, hidden: Tensor) -> Tensor:
    return pieces.attention(b, hidden)


def normed_attention(b: Builder, hidden: Tensor) -> Tensor:
    """Qwen3MoeAttention: RMS norms over the features of each head, before the rotation."""
    return pieces.attention(b, hidden, norm_heads=b.rms_norm, norm_before_transpose=True)
