"""Vision blocks of transformers/models/{qwen2_vl,qwen2_5_vl,qwen3_vl}/modeling_*.py: rotation in fp32, one qkv product.

Images have any size here: ``image_patches`` in the vision config says how many patches one has (before the merger takes
four to one), ``DEFAULT_PATCHES`` when absent. Images are attended one by one, and windowed layers window by window, in
a loop whose pieces have the same bytes together as one call has. Eager scores are described as those of whole images,
which is more than windowed layers keep.
"""

from __future__ import annotations

from estimators.activations.attention import Scores
from estimators.activations.blocks.two_way import merged
from estimators.activations.blocks.vision import gated
from estimators.activations.builder import Builder
from estimators.activations.streams import Over
from estimators.activations.tape import Dim, Gradient, Tensor

DEFAULT_PATCHES = 1024  # an image of 448 x 448 pixels in patches of 14


def patches(b: Builder) -> int:
    return b.number("image_patches", default=DEFAULT_PATCHES)


def width(b: Builder) -> int:
    """Features of a patch; Qwen2-VL calls the language model's width ``hidden_size``."""
    return b.number("embed_dim", default=b.number("hidden_size"))


def shape(b: Builder) -> tuple[Dim, ...]:
    return ("B", patches(b), width(b))


def attention(b: Builder, hidden: Tensor) -> Tensor:
    """VisionAttention."""
    count, tokens = b.number("num_heads", "num_attention_heads"), hidden.shape[1]
    size = width(b) // count
    q, k, v = unbound(b, b.module(hidden, "attn.qkv"), (hidden.shape[0], tokens, count, size))
    q, k = rotated(b, q, k, tokens, size)
    q, k, v = (b.view(t, (t.shape[0], count, tokens, size), swaps=True) for t in (q, k, v))
    if b.kernels.attention == "eager":  # a batch of one image: products take its heads as they lie
        q.strided = k.strided = v.strided = False
    output = merged(b, q, k, v, None, Scores(dropout=b.fraction("attention_dropout")))
    return b.module(b.cat([output], output.shape, "images side by side"), "attn.proj")


def unbound(b: Builder, qkv: Tensor, piece: tuple[Dim, ...]) -> list[Tensor]:
    """``reshape, permute, unbind``: views; backward stacks three gradients, and copies the stack to permute back."""
    tape, before = b.tape, tuple(qkv.shape)
    permuted = Tensor(qkv.storage, before, qkv.dtype, base=qkv.base or qkv)

    def backward(g: Tensor) -> list[Gradient]:
        return [tape.new("gradients, permuted back", before, g.dtype)]

    return b.split(tape.record(permuted, "permute", [qkv], [], backward), [piece] * 3)


def rotated(b: Builder, q: Tensor, k: Tensor, tokens: Dim, size: int) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb_vision: in fp32; cosines of an image belong to all blocks."""
    cos, sin = (b.given_fp32(name, ("B", tokens, 1, size)) for name in ("image cos", "image sin"))
    dtype = q.dtype
    q, k = b.cast(q, "fp32"), b.cast(k, "fp32")
    q_embed = b.add(b.multiply(q, cos), b.multiply(b.rotate_half(q), sin))
    k_embed = b.add(b.multiply(k, cos), b.multiply(b.rotate_half(k), sin))
    q_embed = b.cast(q_embed, dtype)
    k_embed = b.cast(k_embed, dtype)
    return q_embed, k_embed


def _qwen2(b: Builder, hidden: Tensor) -> Tensor:
    hidden = b.add(hidden, attention(b, b.norm(hidden, "norm1")))
    return b.add(hidden, feed_forward(b, b.norm(hidden, "norm2"), "mlp.fc1", "mlp.fc2", "quick_gelu"))


def _qwen2_5(b: Builder, hidden: Tensor) -> Tensor:
    hidden = b.add(hidden, attention(b, b.rms_norm(hidden, "norm1")))
    return b.add(hidden, gated(b, b.rms_norm(hidden, "norm2"), act=b.text("hidden_act", default="silu")))


def _qwen3(b: Builder, hidden: Tensor) -> Tensor:
    hidden = b.add(hidden, attention(b, b.norm(hidden, "norm1")))
    names = "mlp.linear_fc1", "mlp.linear_fc2", "gelu_pytorch_tanh"
    return b.add(hidden, feed_forward(b, b.norm(hidden, "norm2"), *names))


def feed_forward(b: Builder, x: Tensor, first: str, second: str, act: str) -> Tensor:
    return b.module(b.activation(b.text("hidden_act", default=act), b.module(x, first)), second)


qwen2, qwen2_5, qwen3 = Over(shape, _qwen2), Over(shape, _qwen2_5), Over(shape, _qwen3)
