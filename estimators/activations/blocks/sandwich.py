"""Decoders with norms after their branches: gemma2, gemma3, glm4 (both sides), olmo2, olmo3, exaone4 (after only)."""

from __future__ import annotations

from estimators.activations.attention import Scores
from estimators.activations.blocks.llama import interleaved, upcast_half
from estimators.activations.blocks.pieces import attended, attention, fused_gated_mlp, gated_mlp, half
from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor


def gemma2(b: Builder, hidden: Tensor) -> Tensor:
    """Gemma2DecoderLayer: soft-capped scores."""
    scores = Scores(softcap=b.fraction("attn_logit_softcapping") > 0, dropout=b.fraction("attention_dropout"))
    return _gemma(b, hidden, lambda x: attention(b, x, scores=scores))


def gemma3(b: Builder, hidden: Tensor) -> Tensor:
    """Gemma3DecoderLayer: heads of q and k are normalised."""
    return _gemma(b, hidden, lambda x: attention(b, x, norm_heads=b.gemma_norm))


def _gemma(b: Builder, hidden: Tensor, attend: object) -> Tensor:
    assert callable(attend)
    both_masks(b)
    residual = hidden
    hidden = b.gemma_norm(hidden, "input_layernorm")
    hidden = attend(hidden)
    hidden = b.gemma_norm(hidden, "post_attention_layernorm")
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.gemma_norm(hidden, "pre_feedforward_layernorm")
    hidden = gated_mlp(b, hidden)
    hidden = b.gemma_norm(hidden, "post_feedforward_layernorm")
    return b.add(residual, hidden)


def both_masks(b: Builder) -> None:
    """The model makes a mask for layers with a window and one for those without, whatever the length of the sequence
    (modeling_gemma2.py, modeling_gemma3.py: ``causal_mask_mapping``)."""
    if b.kernels.attention == "eager":
        b.given("mask of the other layers", ("B" if b.kernels.padding == "right" else 1, 1, "S", "S"))


def glm4(b: Builder, hidden: Tensor) -> Tensor:
    """Glm4DecoderLayer."""
    residual = hidden
    hidden = b.rms_norm(hidden, "input_layernorm")
    hidden = attention(b, hidden, rotate=interleaved)
    hidden = b.rms_norm(hidden, "post_self_attn_layernorm")
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.rms_norm(hidden, "post_attention_layernorm")
    hidden = fused_gated_mlp(b, hidden)
    hidden = b.rms_norm(hidden, "post_mlp_layernorm")
    return b.add(residual, hidden)


def olmo2(b: Builder, hidden: Tensor) -> Tensor:
    """Olmo2DecoderLayer: whole q and k are normalised; weights of norms multiply in fp32."""
    residual = hidden
    hidden = olmo2_attention(b, hidden)
    hidden = b.rms_norm_cast_last(hidden, "post_attention_layernorm")
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = gated_mlp(b, hidden)
    hidden = b.rms_norm_cast_last(hidden, "post_feedforward_layernorm")
    return b.add(residual, hidden)


def olmo2_attention(b: Builder, hidden: Tensor) -> Tensor:
    size = b.head_size
    q = b.rms_norm_cast_last(b.module(hidden, "self_attn.q_proj"), "self_attn.q_norm")
    k = b.rms_norm_cast_last(b.module(hidden, "self_attn.k_proj"), "self_attn.k_norm")
    v = b.module(hidden, "self_attn.v_proj")
    q, k, v = (b.view(t, ("B", int(t.shape[-1]) // size, "S", size), swaps=True) for t in (q, k, v))
    q, k, *_ = upcast_half(b, q, k)
    return attended(b, q, k, v, "self_attn.o_proj")


def exaone4(b: Builder, hidden: Tensor) -> Tensor:
    """Exaone4DecoderLayer: heads of q and k are normalised."""
    residual = hidden
    hidden = attention(b, hidden, rotate=half, norm_heads=b.rms_norm)
    hidden = b.rms_norm(hidden, "post_attention_layernorm")
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = gated_mlp(b, hidden)
    hidden = b.rms_norm(hidden, "post_feedforward_layernorm")
    return b.add(residual, hidden)
