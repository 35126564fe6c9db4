"""Language blocks of transformers/models/{qwen2_vl,qwen2_5_vl,qwen3_vl}/modeling_*.py: positions differ by sample.

The cosines of three axes (time, rows, columns) are put together once for the model.
"""

from __future__ import annotations

from estimators.activations.blocks import pieces
from estimators.activations.blocks.experts import gated_mlp
from estimators.activations.blocks.frames import pre_norm
from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor


def qwen2(b: Builder, hidden: Tensor) -> Tensor:
    """Qwen2VLDecoderLayer, Qwen2_5_VLDecoderLayer."""
    return pre_norm(b, hidden, lambda b, x: pieces.attention(b, x, rotate=by_sample), gated_mlp)


def qwen3(b: Builder, hidden: Tensor) -> Tensor:
    """Qwen3VLTextDecoderLayer: Qwen3's block."""
    return pre_norm(b, hidden, normed, gated_mlp)


def normed(b: Builder, hidden: Tensor) -> Tensor:
    return pieces.attention(b, hidden, rotate=by_sample, norm_heads=b.rms_norm, norm_before_transpose=True)


def by_sample(b: Builder, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = (b.given(name, ("B", 1, "S", b.head_size)) for name in ("cos", "sin"))
    return b.rotary(q, k, cos, sin)
