"""Blocks whose code lives on the hub (qwen, baichuan, chatglm, internlm2, minicpm): by their nearest relative in
transformers, with the projections that their parameters show; Baichuan's after what its published code does. Not compared
with the originals, which never run here."""

from __future__ import annotations

from collections.abc import Callable

from estimators.activations.blocks.pieces import attended, gated_mlp
from estimators.activations.blocks.t5 import t5_norm
from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor
from estimators.activations.writes import minimum

Attend = Callable[[Builder, Tensor, Tensor, Tensor], Tensor]


def baichuan(b: Builder, hidden: Tensor) -> Tensor:
    """DecoderLayer of Baichuan-7B (scores by hand, whatever kernel is asked for) and Baichuan2-7B (sdpa)."""
    return _baichuan(b, hidden, _second if _is_second(b) else _first)


def baichuan_alibi(b: Builder, hidden: Tensor) -> Tensor:
    """BaichuanLayer of Baichuan-13B (scores by hand) and Baichuan2-13B (sdpa in training), with ALiBi in the mask."""
    return _baichuan(b, hidden, _second_alibi if _is_second(b) else _first_alibi)


def _is_second(b: Builder) -> bool:
    return b.config.get("z_loss_weight") is not None


def _baichuan(b: Builder, hidden: Tensor, attend: Attend) -> Tensor:
    """Llama with one projection for q, k and v, and norms whose product is promoted to fp32 (as T5's)."""
    residual = hidden
    hidden = t5_norm(b, hidden, "input_layernorm")
    packed = b.module(hidden, "self_attn.W_pack")
    size, heads = b.head_size, b.width // b.head_size
    q, k, v = (b.narrow(packed, ("B", "S", b.width)) for _ in range(3))
    q, k, v = (b.view(t, ("B", heads, "S", size), swaps=True) for t in (q, k, v))
    output = b.view(attend(b, q, k, v), ("B", "S", b.width))
    del packed, q, k, v
    hidden = b.module(output, "self_attn.o_proj")
    del output
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = t5_norm(b, hidden, "post_attention_layernorm")
    hidden = gated_mlp(b, hidden)
    return b.add(residual, hidden)


def _first(b: Builder, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = b.rotary(q, k, *b.tables(b.head_size))
    return _by_hand(b, q, k, v, b.given("mask", ("B", 1, "S", "S")), "fp32")


def _first_alibi(b: Builder, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _by_hand(b, q, k, v, b.given("mask", ("B", q.shape[1], "S", "S")), None)


def _by_hand(b: Builder, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, softmax: str | None) -> Tensor:
    """Scores divided by a number, plus a mask of numbers, cut off from below by ``torch.max``."""
    dtype = q.dtype
    weights = b.scale(b.matmul(q, k, (*q.shape[:-1], "S"), "scores"), "divided scores")
    weights = b.add(weights, mask, "masked scores")
    weights = minimum(b, weights)  # of the other sign, with the same tensors
    weights = b.cast(b.softmax(weights, softmax, "attention softmax"), dtype)
    output = b.view(b.matmul(weights, v, q.shape, "attention output"), ("B", "S", q.shape[1], q.shape[-1]), swaps=True)
    return b.contiguous(output)


def _second(b: Builder, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries and keys are turned in fp32, each upcast twice; the mask is numbers."""
    cos, sin = (b.given(name, ("B", 1, "S", b.head_size), "fp32") for name in ("cos", "sin"))
    dtype = q.dtype

    def turned(x: Tensor) -> Tensor:
        return b.add(b.multiply(b.cast(x, "fp32"), cos), b.multiply(b.rotate_half(b.cast(x, "fp32")), sin))

    q_embed = turned(q)
    k_embed = turned(k)
    return _fused(b, b.cast(q_embed, dtype), b.cast(k_embed, dtype), v, b.given("mask", ("B", 1, "S", "S")))


def _second_alibi(b: Builder, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _fused(b, q, k, v, b.given("mask", ("B", q.shape[1], "S", "S")))


def _fused(b: Builder, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return b.view(b.sdpa(q, k, v, mask), ("B", "S", q.shape[1], q.shape[-1]), swaps=True)


def internlm2(b: Builder, hidden: Tensor) -> Tensor:
    """InternLM2DecoderLayer: q, k and v interleaved by group in one projection."""
    kv = b.number("num_key_value_heads", default=b.number("num_attention_heads")) * b.head_size
    residual = hidden
    hidden = b.rms_norm(hidden, "attention_norm")
    hidden = fused_attention(b, hidden, "attention.wqkv", "attention.wo", b.head_size, b.width, kv)
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.rms_norm(hidden, "ffn_norm")
    gate = b.pointwise("silu", b.module(hidden, "feed_forward.w1"))
    hidden = b.module(b.multiply(gate, b.module(hidden, "feed_forward.w3"), "act x up"), "feed_forward.w2")
    return b.add(residual, hidden)


def qwen(b: Builder, hidden: Tensor) -> Tensor:
    """QWenBlock: Llama with one projection for q, k and v; the second half of the MLP is the gate."""
    size = b.number("kv_channels", default=128)
    width = size * b.number("num_attention_heads")
    residual = hidden
    hidden = b.rms_norm(hidden, "ln_1")
    hidden = fused_attention(b, hidden, "attn.c_attn", "attn.c_proj", size, width, width)
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.rms_norm(hidden, "ln_2")
    up = b.module(hidden, "mlp.w1")
    gate = b.pointwise("silu", b.module(hidden, "mlp.w2"))
    hidden = b.module(b.multiply(up, gate, "up x act"), "mlp.c_proj")
    return b.add(residual, hidden)


def chatglm(b: Builder, hidden: Tensor) -> Tensor:
    """GLMBlock of ChatGLM2 and 3: half of each head is turned, gate and up in one product."""
    size, heads = b.number("kv_channels", default=128), b.number("num_attention_heads")
    width = size * heads
    kv = size * b.number("multi_query_group_num") if b.flag("multi_query_attention") else width
    residual = hidden
    hidden = b.rms_norm(hidden, "input_layernorm")
    hidden = fused_attention(
        b, hidden, "self_attention.query_key_value", "self_attention.dense", size, width, kv, turns=size // 2
    )
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.rms_norm(hidden, "post_attention_layernorm")
    both = b.module(hidden, "mlp.dense_h_to_4h")
    gate, up = b.split(both, [("B", "S", int(both.shape[-1]) // 2)] * 2)
    hidden = b.module(b.multiply(b.pointwise("silu", gate), up, "act x up"), "mlp.dense_4h_to_h")
    return b.add(residual, hidden)


def fused_attention(
    b: Builder, hidden: Tensor, qkv: str, out: str, size: int, width: int, kv: int, turns: int = 0
) -> Tensor:
    """q, k and v split from one projection, turned as in Llama."""
    q, k, v = b.split(b.module(hidden, qkv), [("B", "S", n) for n in (width, kv, kv)])
    q, k, v = (b.view(t, ("B", int(t.shape[-1]) // size, "S", size), swaps=True) for t in (q, k, v))
    q, k = b.rotary(q, k, *b.tables(turns or size), sliced=bool(turns))
    return attended(b, q, k, v, out)
