"""What the blocks of several families are made of, with the names that most of them use."""

from __future__ import annotations

from collections.abc import Callable

from estimators.activations import fused
from estimators.activations.attention import Scores
from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor

Norm = Callable[[Tensor, str], Tensor]
Rotate = Callable[[Builder, Tensor, Tensor], tuple[Tensor, ...]]  # q, k, and what else the frame holds


FUSED_GATES = ("silu", "swish", "gelu_pytorch_tanh")


def half(b: Builder, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """Rotary embeddings of whole heads."""
    return b.rotary(q, k, *b.tables(b.head_size))


def still(_: Builder, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """No rotary embeddings in this layer."""
    return q, k


def partly_in_frame(b: Builder, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """The first share of each head turned, in the frame of the attention (modeling_phi.py, modeling_stablelm.py)."""
    cos, sin = b.tables(int(b.head_size * b.rotary_share))
    turns, rests = int(cos.shape[-1]), b.head_size - int(cos.shape[-1])
    q_rot, q_pass = (b.narrow(q, (*q.shape[:-1], n)) if n < b.head_size else q for n in (turns, rests))
    k_rot, k_pass = (b.narrow(k, (*k.shape[:-1], n)) if n < b.head_size else k for n in (turns, rests))
    q_rot, k_rot = b.rotary(q_rot, k_rot, cos, sin)
    q, k = b.cat([q_rot, q_pass], q.shape), b.cat([k_rot, k_pass], k.shape)
    return q, k, q_rot, q_pass, k_rot, k_pass


def attention(
    b: Builder,
    hidden: Tensor,
    rotate: Rotate = half,
    scores: Scores | None = None,
    norm_heads: Norm | None = None,
    norm_before_transpose: bool = False,
    out: str = "o_proj",
) -> Tensor:
    """LlamaAttention and its relatives. ``norm_heads``: q_norm and k_norm over heads, before or after the transpose."""
    size = b.head_size
    q, k = (_projected(b, hidden, n, size, norm_heads if norm_before_transpose else None) for n in "qk")
    v = b.heads(hidden, "self_attn.v_proj", size)
    if norm_heads is not None and not norm_before_transpose:
        q = norm_heads(q, "self_attn.q_norm")
        k = norm_heads(k, "self_attn.k_norm")
    q, k, *_held = rotate(b, q, k)
    return attended(b, q, k, v, f"self_attn.{out}", scores)


def _projected(b: Builder, hidden: Tensor, which: str, size: int, norm: Norm | None) -> Tensor:
    if norm is None:
        return b.heads(hidden, f"self_attn.{which}_proj", size)
    flat = b.module(hidden, f"self_attn.{which}_proj")
    count = int(flat.shape[-1]) // size
    normed = norm(b.view(flat, ("B", "S", count, size)), f"self_attn.{which}_norm")
    return b.view(normed, ("B", count, "S", size), swaps=True)


def attended(
    b: Builder, q: Tensor, k: Tensor, v: Tensor, out: str, scores: Scores | None = None, mask: Tensor | None = None
) -> Tensor:
    """Attention over heads, and the output projection. The heads live until it is done, as in the module's frame."""
    width = int(q.shape[1]) * int(v.shape[-1])
    output = b.attend(q, k, v, mask or b.mask(), scores or Scores(dropout=b.fraction("attention_dropout")))
    return b.module(b.view(output, ("B", "S", width)), out)


def gated_mlp(b: Builder, x: Tensor) -> Tensor:
    """LlamaMLP: down(act(gate(x)) * up(x))."""
    act = b.text("hidden_act", "hidden_activation", default="silu")
    if b.kernels.fused and act in FUSED_GATES:
        return b.module(fused.gate(b, b.module(x, "mlp.gate_proj"), b.module(x, "mlp.up_proj")), "mlp.down_proj")
    product = b.multiply(b.activation(act, b.module(x, "mlp.gate_proj")), b.module(x, "mlp.up_proj"), "act x up")
    return b.module(product, "mlp.down_proj")


def fused_gated_mlp(b: Builder, x: Tensor) -> Tensor:
    """Phi3MLP: gate and up in one product, chunked."""
    act = b.text("hidden_act", default="silu")
    up = b.module(x, "mlp.gate_up_proj")
    width = int(up.shape[-1]) // 2
    gate, up = b.split(up, [("B", "S", width)] * 2)
    if b.kernels.fused and act in FUSED_GATES:
        return b.module(fused.gate(b, gate, up), "mlp.down_proj")
    up = b.multiply(up, b.activation(act, gate), "up x act")
    return b.module(up, "mlp.down_proj")


def up_down_mlp(b: Builder, x: Tensor, up: str = "mlp.up_proj", down: str = "mlp.down_proj", act: str = "") -> Tensor:
    """up, activation, down."""
    x = b.module(x, up)
    x = b.activation(act or b.text("hidden_act", "activation_function"), x)
    return b.module(x, down)
