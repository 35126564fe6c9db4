"""Llama4TextDecoderLayer: transformers/models/llama4/modeling_llama4.py. Every expert computes all tokens, weighted."""

from __future__ import annotations

from estimators.activations.attention import Scores
from estimators.activations.blocks.experts import gated_mlp, has_experts
from estimators.activations.blocks.pieces import attended
from estimators.activations.builder import Builder
from estimators.activations.routing import top_k, total
from estimators.activations.tape import Dim, Tensor
from estimators.activations.writes import add_in_place, turned


def block(b: Builder, hidden: Tensor) -> Tensor:
    residual = hidden
    hidden = norm(b, hidden, "input_layernorm")
    attention_states = attention(b, hidden)
    hidden = b.add(residual, attention_states)

    residual = hidden
    hidden = norm(b, hidden, "post_attention_layernorm")
    hidden = mixture(b, hidden) if has_experts(b, "feed_forward.experts") else gated_mlp(b, hidden, "feed_forward")
    return b.add(residual, hidden)


def norm(b: Builder, x: Tensor, name: str) -> Tensor:
    """Llama4TextRMSNorm: the upcast input lives only inside."""
    return b.multiply(root_mean_square(b, x, name), b.need(f"{name}.weight"), f"{name} normalised")


def root_mean_square(b: Builder, x: Tensor, name: str) -> Tensor:
    """Llama4TextL2Norm, and the weightless part of the norm."""
    return b.cast(b.rms_rows(x, name)[0], x.dtype)


def attention(b: Builder, hidden: Tensor) -> Tensor:
    """Rotation as complex numbers and norms of the heads, before heads and tokens change places.

    Layers without rotation (``no_rope_layers``) scale their queries instead; they are described as rotated.
    """
    size = b.head_size
    q, k, v = (b.module(hidden, f"self_attn.{n}_proj") for n in "qkv")
    q, k = (b.view(t, ("B", "S", int(t.shape[-1]) // size, size)) for t in (q, k))
    v = b.view(v, ("B", int(v.shape[-1]) // size, "S", size), swaps=True)
    frequencies = b.given("frequencies", (1, "S", size // 2), "complex64")
    q, k = both_turned(b, q, k, frequencies)
    if b.flag("use_qk_norm", True):
        q = root_mean_square(b, q, "q norm")
        k = root_mean_square(b, k, "k norm")
    q, k = (b.view(t, ("B", t.shape[2], "S", size), swaps=True) for t in (q, k))
    return attended(b, q, k, v, "self_attn.o_proj", Scores(upcast=False))


def both_turned(b: Builder, q: Tensor, k: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    q_out, k_out = turned(b, q, frequencies), turned(b, k, frequencies)
    return q_out, k_out


def mixture(b: Builder, hidden: Tensor) -> Tensor:
    """Llama4TextMoe: the tokens are repeated for every expert, and those that it does not serve weigh 0."""
    width = int(hidden.shape[-1])
    scores = router(b, hidden)
    count = int(scores.shape[-1])
    routed_in = repeated(b, hidden, (count, "B", "S", width))
    shares = b.contiguous(b.view(scores, (count, "B", "S", 1)))
    routed_in = b.multiply(routed_in, shares, "token x weight")
    del shares
    routed_out = experts(b, routed_in)
    out = gated_mlp(b, hidden, "feed_forward.shared_expert")
    return add_in_place(b, out, total(b, routed_out, ("B", "S", width), "sum over experts"))


def experts(b: Builder, x: Tensor) -> Tensor:
    """Llama4TextExperts: batched products with all experts."""
    up, down = b.need("feed_forward.experts.gate_up_proj"), b.need("feed_forward.experts.down_proj")
    made = b.product(x, up, (*x.shape[:-1], up.shape[-1]), "feed_forward.experts.gate_up_proj")
    half: tuple[Dim, ...] = (*made.shape[:-1], up.shape[-1] // 2)
    gate, upper = b.split(made, [half, half])
    product = b.multiply(upper, b.activation("silu", gate), "up x act")
    return b.product(product, down, (*x.shape[:-1], down.shape[-1]), "feed_forward.experts.down_proj")


def router(b: Builder, hidden: Tensor) -> Tensor:
    """Llama4Router: the chosen logits among minus infinities, through a sigmoid in fp32."""
    logits = b.module(hidden, "feed_forward.router")
    b.kept_until_return.append(logits)
    values, indices = top_k(b, logits, b.number("num_experts_per_tok"))
    tape, shape = b.tape, tuple(values.shape)
    scores = tape.record(tape.new("scores", logits.shape, logits.dtype), "scatter", [values], [("chosen", indices)],
                         lambda g: [tape.new("gradient of the chosen", shape, g.dtype)])  # fmt: skip
    return b.cast(b.pointwise("sigmoid", b.cast(scores, "fp32"), "output"), logits.dtype)


def repeated(b: Builder, x: Tensor, shape: tuple[Dim, ...]) -> Tensor:
    """``repeat``: copies; in backward a sum over them."""
    tape, before = b.tape, x.shape
    return tape.record(tape.new("repeated tokens", shape, x.dtype), "repeat", [x], [],
                       lambda g: [tape.new("gradient, summed", before, g.dtype)])  # fmt: skip
