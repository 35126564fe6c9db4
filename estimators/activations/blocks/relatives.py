"""Pre-norm decoders that differ from Llama in one piece: arcee, apertus, jais2, helium, ernie4_5, hunyuan, seed_oss."""

from __future__ import annotations

from estimators.activations.blocks.frames import pre_norm
from estimators.activations.blocks.pieces import attended, attention, gated_mlp, up_down_mlp
from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor
from estimators.activations.writes import chosen, minimum


def arcee(b: Builder, hidden: Tensor) -> Tensor:
    """ArceeDecoderLayer: an MLP without a gate."""
    return pre_norm(b, hidden, attention, up_down_mlp)


def jais2(b: Builder, hidden: Tensor) -> Tensor:
    """Jais2DecoderLayer: LayerNorm and an MLP without a gate."""
    return pre_norm(b, hidden, attention, up_down_mlp, b.norm)


def helium(b: Builder, hidden: Tensor) -> Tensor:
    """HeliumDecoderLayer: weights of norms multiply in fp32; each layer repeats its own cosines."""
    return pre_norm(b, hidden, lambda b, x: attention(b, x, rotate=repeated), gated_mlp, b.rms_norm_in_fp32)


def ernie4_5(b: Builder, hidden: Tensor) -> Tensor:
    """Ernie4_5DecoderLayer: heads turned in fp32 with cosines of the layer's own."""
    return pre_norm(b, hidden, lambda b, x: attention(b, x, rotate=_in_fp32), gated_mlp)


def hunyuan(b: Builder, hidden: Tensor) -> Tensor:
    """HunYuanDenseV1DecoderLayer: heads are normalised after they were turned."""
    return pre_norm(b, hidden, _normed_last, gated_mlp)


def seed_oss(b: Builder, hidden: Tensor) -> Tensor:
    """SeedOssDecoderLayer: dropout of both branches."""
    drop = b.fraction("residual_dropout", default=0.1)
    return pre_norm(
        b,
        hidden,
        lambda b, x: b.dropout(attention(b, x), drop),
        lambda b, x: b.dropout(gated_mlp(b, x), drop),
    )


def ministral3(b: Builder, hidden: Tensor) -> Tensor:
    """Ministral3DecoderLayer: queries are scaled by their position."""
    return pre_norm(b, hidden, lambda b, x: attention(b, x, rotate=_scaled_queries), gated_mlp)


def apertus(b: Builder, hidden: Tensor) -> Tensor:
    """ApertusDecoderLayer: norms of heads behind the transpose, an MLP without a gate whose activation trains."""
    return pre_norm(
        b, hidden, lambda b, x: attention(b, x, norm_heads=b.rms_norm), apertus_mlp,
        names=("attention_layernorm", "feedforward_layernorm"),
    )  # fmt: skip


def apertus_mlp(b: Builder, x: Tensor) -> Tensor:
    act = b.text("hidden_act", default="xielu")
    made = b.module(x, "mlp.up_proj")
    made = xielu(b, made) if act == "xielu" else b.activation(act, made)
    return b.module(made, "mlp.down_proj")


def xielu(b: Builder, x: Tensor) -> Tensor:
    """XIELUActivation of transformers/activations.py, in Python: two branches, both computed, one chosen by sign."""
    positive, negative = _softplus(b, "mlp.act_fn.alpha_p"), b.shift(_softplus(b, "mlp.act_fn.alpha_n"))
    condition = b.tape.new("positive", x.shape, "bool")
    left = b.add(b.multiply(b.multiply(positive, x, "alpha x"), x, "alpha x x"), b.scale(x))
    inner = b.add(b.pointwise("expm1", minimum(b, x), "output", makes=2), x)
    product = b.multiply(inner, negative, "alpha expm1")
    del inner
    right = b.add(product, b.scale(x))
    del product
    return chosen(b, condition, left, right)


def _softplus(b: Builder, name: str) -> Tensor:
    weight, tape = b.need(name), b.tape
    made = tape.new(name, weight.shape, weight.dtype)
    return tape.record(made, "softplus", [weight], [], lambda g: [tape.new("gradient", weight.shape, weight.dtype)])


def _scaled_queries(b: Builder, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    q, k = b.rotary(q, k, *b.tables(b.head_size))
    return b.multiply(q, b.tape.new("scale of each position", (1, 1, "S", 1), q.dtype)), k


def repeated(b: Builder, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """modeling_helium.py: ``cos[..., :half].repeat_interleave(2)``."""
    cos, sin = (b.tape.new(f"repeated {n}", (1, 1, "S", b.head_size), b.stream) for n in ("cos", "sin"))
    return b.rotary(q, k, cos, sin)


def _in_fp32(b: Builder, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """modeling_ernie4_5.py: cosines of the input's dtype, heads cast before each product."""
    dtype = q.dtype
    cos, sin = (b.tape.new(f"repeated {n}", (1, 1, "S", b.head_size), "fp32") for n in ("cos", "sin"))

    def turned(x: Tensor) -> Tensor:
        return b.add(b.multiply(b.cast(x, "fp32"), cos), b.multiply(b.cast(b.rotate_half(x), "fp32"), sin))

    q_embed = turned(q)
    k_embed = turned(k)
    return b.cast(q_embed, dtype), b.cast(k_embed, dtype)


def _normed_last(b: Builder, hidden: Tensor) -> Tensor:
    size = b.head_size
    q, k, v = (b.heads(hidden, f"self_attn.{n}_proj", size) for n in "qkv")
    q, k = b.rotary(q, k, *b.tables(size))
    q = b.rms_norm(q, "self_attn.query_layernorm")
    k = b.rms_norm(k, "self_attn.key_layernorm")
    return attended(b, q, k, v, "self_attn.o_proj")
