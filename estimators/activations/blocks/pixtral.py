"""PixtralAttentionLayer: transformers/models/pixtral/modeling_pixtral.py.

All images of a micro-batch lie in one sequence: the mask between them, and eager scores, grow with the square of their
number. Sizes here are linear in it, which is right for one image.
"""

from __future__ import annotations

from estimators.activations.attention import Scores
from estimators.activations.blocks.two_way import heads, merged
from estimators.activations.blocks.vision import gated, grid
from estimators.activations.builder import Builder
from estimators.activations.streams import Over
from estimators.activations.tape import Tensor


def attention(b: Builder, hidden: Tensor) -> Tensor:
    """Rotary embeddings of the rows and columns of patches; a mask between images, which sdpa and eager both get."""
    size, tokens = b.head_size, hidden.shape[1]
    q, k, v = (b.module(hidden, f"attention.{n}_proj") for n in "qkv")
    q, k, v = (heads(b, t, size) for t in (q, k, v))
    cos, sin = b.given("patch cos", (tokens, size)), b.given("patch sin", (tokens, size))
    q, k = b.rotary(q, k, cos, sin)
    mask = b.given("mask between images", (1, 1, tokens, tokens))
    if b.kernels.attention == "sdpa":
        batch, count, _, _ = q.shape
        output = b.view(b.sdpa(q, k, v, mask), (batch, tokens, count, size), swaps=True)
        output = b.view(output, (batch, tokens, int(count) * size))
    else:
        q.strided = k.strided = v.strided = False  # a batch of one: products take its heads as they lie
        output = merged(b, q, k, v, mask, Scores(dropout=b.fraction("attention_dropout")))
    return b.module(output, "attention.o_proj")


def _block(b: Builder, hidden: Tensor) -> Tensor:
    residual = hidden
    hidden = b.rms_norm(hidden, "attention_norm")
    hidden = attention(b, hidden)
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.rms_norm(hidden, "ffn_norm")
    hidden = gated(b, hidden, "feed_forward", b.text("hidden_act", default="gelu"))
    return b.add(residual, hidden)


block = Over(lambda b: ("B", grid(b), b.width), _block)
