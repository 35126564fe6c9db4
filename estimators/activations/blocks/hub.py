"""Blocks whose code lives on the hub (qwen, baichuan, chatglm, internlm2, minicpm): by their nearest relative in
transformers, with the projections that their parameters show. Not compared with the originals, which never run here."""

from __future__ import annotations

from estimators.activations.blocks.pieces import attended, gated_mlp
from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor


def baichuan(b: Builder, hidden: Tensor) -> Tensor:
    """BaichuanLayer: Llama with one projection for q, k and v."""
    residual = hidden
    hidden = b.rms_norm(hidden, "input_layernorm")
    hidden = fused_attention(b, hidden, "self_attn.W_pack", "self_attn.o_proj", b.head_size, b.width, b.width)
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.rms_norm(hidden, "post_attention_layernorm")
    hidden = gated_mlp(b, hidden)
    return b.add(residual, hidden)


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
