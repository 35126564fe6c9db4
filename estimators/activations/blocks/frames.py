"""Frames that blocks share."""

from __future__ import annotations

from collections.abc import Callable

from estimators.activations.blocks import pieces
from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor

Sublayer = Callable[[Builder, Tensor], Tensor]


def pre_norm(
    b: Builder,
    hidden: Tensor,
    attention: Sublayer,
    feed_forward: Sublayer,
    norm: pieces.Norm | None = None,
    names: tuple[str, str] = ("input_layernorm", "post_attention_layernorm"),
    scaled: bool = False,
) -> Tensor:
    """x + attention(norm(x)), then x + feed_forward(norm(x)): every relative of LlamaDecoderLayer.

    ``norm``: RMS norms where nothing else is given; ``names``: theirs. ``scaled``: both branches are multiplied by a number.
    """
    norm = norm or b.rms_norm
    residual = hidden
    hidden = norm(hidden, names[0])
    hidden = attention(b, hidden)
    hidden = b.add(residual, b.scale(hidden) if scaled else hidden)

    residual = hidden
    hidden = norm(hidden, names[1])
    hidden = feed_forward(b, hidden)
    return b.add(residual, b.scale(hidden) if scaled else hidden)


def plain_attention(b: Builder, hidden: Tensor) -> Tensor:
    return pieces.attention(b, hidden)


def normed_attention(b: Builder, hidden: Tensor) -> Tensor:
    """Qwen3MoeAttention: RMS norms over the features of each head, before the rotation."""
    return pieces.attention(b, hidden, norm_heads=b.rms_norm, norm_before_transpose=True)
