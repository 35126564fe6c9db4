"""Pre-norm decoders: transformers/models/{llama,mistral,qwen2,qwen3,gemma,granite,olmo,smollm3,...}/modeling_*.py."""

from __future__ import annotations

from estimators.activations.blocks.pieces import (
    Norm,
    attended,
    attention,
    fused_gated_mlp,
    gated_mlp,
    partly_in_frame,
    up_down_mlp,
)
from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor


def block(b: Builder, hidden: Tensor) -> Tensor:
    """LlamaDecoderLayer; Mistral, Qwen2, SmolLM3 and others are the same. Formula A.1 of ``docs/formulas-memory.md``."""
    residual = hidden
    hidden = b.rms_norm(hidden, "input_layernorm")
    hidden = attention(b, hidden)
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.rms_norm(hidden, "post_attention_layernorm")
    hidden = gated_mlp(b, hidden)
    return b.add(residual, hidden)


def qwen3(b: Builder, hidden: Tensor) -> Tensor:
    """Qwen3DecoderLayer: heads of q and k are normalised."""
    residual = hidden
    hidden = b.rms_norm(hidden, "input_layernorm")
    hidden = attention(b, hidden, norm_heads=b.rms_norm, norm_before_transpose=True)
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.rms_norm(hidden, "post_attention_layernorm")
    hidden = gated_mlp(b, hidden)
    return b.add(residual, hidden)


def granite(b: Builder, hidden: Tensor) -> Tensor:
    """GraniteDecoderLayer: both branches are scaled."""
    residual = hidden
    hidden = b.rms_norm(hidden, "input_layernorm")
    hidden = attention(b, hidden)
    hidden = b.add(residual, b.scale(hidden, "scaled branch"))

    residual = hidden
    hidden = b.rms_norm(hidden, "post_attention_layernorm")
    hidden = gated_mlp(b, hidden)
    return b.add(residual, b.scale(hidden, "scaled branch"))


def gemma(b: Builder, hidden: Tensor) -> Tensor:
    """GemmaDecoderLayer: its norm multiplies by 1 + weight in fp32."""
    residual = hidden
    hidden = b.gemma_norm(hidden, "input_layernorm")
    hidden = attention(b, hidden)
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.gemma_norm(hidden, "post_attention_layernorm")
    hidden = gated_mlp(b, hidden)
    return b.add(residual, hidden)


def phi3(b: Builder, hidden: Tensor) -> Tensor:
    """Phi3DecoderLayer: q, k and v are slices of one product; gate and up are chunks of another."""
    drop = b.fraction("resid_pdrop")
    residual = hidden
    hidden = b.rms_norm(hidden, "input_layernorm")
    hidden = phi3_attention(b, hidden)
    hidden = b.add(residual, b.dropout(hidden, drop))

    residual = hidden
    hidden = b.rms_norm(hidden, "post_attention_layernorm")
    hidden = fused_gated_mlp(b, hidden)
    return b.add(residual, b.dropout(hidden, drop))


def phi3_attention(b: Builder, hidden: Tensor) -> Tensor:
    size, queries = b.head_size, b.number("num_attention_heads")
    kv = b.number("num_key_value_heads", default=queries)
    qkv = b.module(hidden, "self_attn.qkv_proj")
    q, k, v = (b.narrow(qkv, ("B", "S", n * size)) for n in (queries, kv, kv))
    q, k, v = (b.view(t, ("B", n, "S", size), swaps=True) for t, n in ((q, queries), (k, kv), (v, kv)))
    q, k = b.rotary(q, k, *b.tables(int(size * b.rotary_share)), sliced=True)
    return attended(b, q, k, v, "self_attn.o_proj")


def olmo(b: Builder, hidden: Tensor) -> Tensor:
    """OlmoDecoderLayer: a norm without weights in fp32, rotary embeddings in fp32, clipping in place."""
    residual = hidden
    hidden = olmo_norm(b, hidden)
    hidden = attention(b, hidden, rotate=upcast_half)
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = olmo_norm(b, hidden)
    hidden = gated_mlp(b, hidden)
    return b.add(residual, hidden)


def olmo_norm(b: Builder, x: Tensor) -> Tensor:
    return b.cast(b.layer_norm(b.cast(x, "fp32"), None, None, "norm"), x.dtype)


def upcast_half(b: Builder, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """Cosines in fp32 that carry the rotation to fp32; the results are cast back (modeling_olmo.py)."""
    dtype, size = q.dtype, b.head_size
    cos, sin = b.given("cos", (1, 1, "S", size), "fp32"), b.given("sin", (1, 1, "S", size), "fp32")
    q, k = b.rotary(q, k, cos, sin)
    return b.cast(q, dtype), b.cast(k, dtype)


def starcoder2(b: Builder, hidden: Tensor) -> Tensor:
    """Starcoder2DecoderLayer: LayerNorm, an MLP without a gate, dropout of both branches."""
    drop = b.fraction("residual_dropout")
    residual = hidden
    hidden = b.norm(hidden, "input_layernorm")
    hidden = b.dropout(attention(b, hidden), drop)
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.norm(hidden, "post_attention_layernorm")
    hidden = b.dropout(up_down_mlp(b, hidden, "mlp.c_fc", "mlp.c_proj"), drop)
    return b.add(residual, hidden)


def nemotron(b: Builder, hidden: Tensor) -> Tensor:
    """NemotronDecoderLayer: LayerNorm with weight + 1, squared ReLU, rotary embeddings of a part of each head."""
    residual = hidden
    hidden = b.norm_1p(hidden, "input_layernorm")
    hidden = attention(b, hidden, rotate=partly)
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.norm_1p(hidden, "post_attention_layernorm")
    hidden = up_down_mlp(b, hidden)
    return b.add(residual, hidden)


def partly(b: Builder, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """Rotary embeddings of the first share of each head."""
    return b.rotary(q, k, *b.tables(int(b.head_size * b.rotary_share)), sliced=True)


def glm(b: Builder, hidden: Tensor) -> Tensor:
    """GlmDecoderLayer: interleaved rotary embeddings of a part of each head, fused gate and up."""
    residual = hidden
    hidden = b.rms_norm(hidden, "input_layernorm")
    hidden = attention(b, hidden, rotate=interleaved)
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.rms_norm(hidden, "post_attention_layernorm")
    hidden = fused_gated_mlp(b, hidden)
    return b.add(residual, hidden)


def interleaved(b: Builder, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """modeling_glm.py: each layer repeats its own cosines."""
    size = int(b.head_size * b.rotary_share)
    cos, sin = (b.tape.new(name, (1, 1, "S", size), b.stream) for name in ("repeated cos", "repeated sin"))
    return b.rotary(q, k, cos, sin, sliced=True)


def stablelm(b: Builder, hidden: Tensor) -> Tensor:
    """StableLmDecoderLayer: LayerNorm, partial rotary embeddings; parallel branches in some."""
    residual = hidden
    hidden = b.norm(hidden, "input_layernorm")
    heads: Norm | None = b.norms_of_heads if b.flag("qk_layernorm") else None
    branch = attention(b, hidden, rotate=partly_in_frame, norm_heads=heads)
    drop = b.fraction("hidden_dropout")
    if b.flag("use_parallel_residual"):
        mlp = b.dropout(gated_mlp(b, hidden), drop)
        return b.add(b.add(residual, branch), mlp)
    residual = b.add(residual, branch)
    mlp = b.dropout(gated_mlp(b, b.norm(residual, "post_attention_layernorm")), drop)
    return b.add(residual, mlp)
