"""LlamaDecoderLayer: transformers/models/llama/modeling_llama.py."""

from __future__ import annotations

from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor


def block(b: Builder, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    residual = hidden
    hidden = b.rms_norm(hidden, "input_layernorm")
    hidden = attention(b, hidden, cos, sin)
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.rms_norm(hidden, "post_attention_layernorm")
    hidden = gated_mlp(b, hidden)
    return b.add(residual, hidden)


def attention(b: Builder, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    size = int(cos.shape[-1])

    def heads(name: str) -> Tensor:
        flat = b.module(hidden, name)
        return b.view(flat, ("B", int(flat.shape[-1]) // size, "S", size))

    q, k, v = heads("self_attn.q_proj"), heads("self_attn.k_proj"), heads("self_attn.v_proj")
    q, k = b.rotary(q, k, cos, sin)
    output = b.sdpa(q, k, v)
    return b.module(b.view(output, ("B", "S", int(q.shape[1]) * size)), "self_attn.o_proj")


def gated_mlp(b: Builder, x: Tensor) -> Tensor:
    return b.module(
        b.multiply(b.pointwise("silu", b.module(x, "mlp.gate_proj")), b.module(x, "mlp.up_proj"), "act x up"), "mlp.down_proj"
    )
