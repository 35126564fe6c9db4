"""LlamaDecoderLayer: transformers/models/llama/modeling_llama.py."""

from __future__ import annotations

from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor


def block(b: Builder, hidden: Tensor) -> Tensor:
    residual = hidden
    hidden = b.rms_norm(hidden, "input_layernorm")
    hidden = attention(b, hidden)
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.rms_norm(hidden, "post_attention_layernorm")
    hidden = gated_mlp(b, hidden)
    return b.add(residual, hidden)


def attention(b: Builder, hidden: Tensor) -> Tensor:
    size = b.number("head_dim", b.number("hidden_size") // b.number("num_attention_heads"))
    q, k = b.heads(hidden, "self_attn.q_proj", size, True), b.heads(hidden, "self_attn.k_proj", size, True)
    v = b.heads(hidden, "self_attn.v_proj", size)
    q, k = b.rotary(q, k, *b.tables(size))
    output = b.attend(q, k, v, b.mask())
    return b.module(b.view(output, ("B", "S", int(q.shape[1]) * size)), "self_attn.o_proj")


def gated_mlp(b: Builder, x: Tensor) -> Tensor:
    return b.module(
        b.multiply(b.pointwise("silu", b.module(x, "mlp.gate_proj")), b.module(x, "mlp.up_proj"), "act x up"), "mlp.down_proj"
    )
