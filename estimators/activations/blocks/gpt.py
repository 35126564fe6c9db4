"""Decoders with LayerNorm and an MLP without a gate: GPT-2 and its relatives, OPT, GPT-NeoX, GPT-J, Phi, Bloom, MPT."""

from __future__ import annotations

from estimators.activations.attention import Scores
from estimators.activations.blocks.pieces import attended, attention, gated_mlp, partly_in_frame, up_down_mlp
from estimators.activations.builder import Builder
from estimators.activations.tape import Dim, Tensor


def gpt2(b: Builder, hidden: Tensor) -> Tensor:
    """GPT2Block: Conv1D projections, q, k and v split from one."""
    drop = b.fraction("resid_pdrop", default=0.1)
    residual = hidden
    hidden = b.norm(hidden, "ln_1")
    branch = b.dropout(gpt2_attention(b, hidden), drop)
    hidden = b.add(branch, residual)

    residual = hidden
    hidden = b.norm(hidden, "ln_2")
    mlp = b.dropout(up_down_mlp(b, hidden, "mlp.c_fc", "mlp.c_proj"), drop)
    return b.add(residual, mlp)


def gpt2_attention(b: Builder, hidden: Tensor) -> Tensor:
    width, size = b.width, b.head_size
    q, k, v = b.split(b.module(hidden, "attn.c_attn"), [("B", "S", width)] * 3)
    q, k, v = (b.view(t, ("B", width // size, "S", size), swaps=True) for t in (q, k, v))
    scores = Scores(upcast=False, dropout=b.fraction("attn_pdrop", default=0.1))
    return attended(b, q, k, v, "attn.c_proj", scores)


def gpt_bigcode(b: Builder, hidden: Tensor) -> Tensor:
    """GPTBigCodeBlock: one key-value head for all queries, or all heads interleaved."""
    drop = b.fraction("resid_pdrop", default=0.1)
    residual = hidden
    hidden = b.norm(hidden, "ln_1")
    branch = b.dropout(bigcode_attention(b, hidden), drop)
    hidden = b.add(branch, residual)

    residual = hidden
    hidden = b.norm(hidden, "ln_2")
    mlp = b.dropout(up_down_mlp(b, hidden, "mlp.c_fc", "mlp.c_proj"), drop)
    return b.add(residual, mlp)


def bigcode_attention(b: Builder, hidden: Tensor) -> Tensor:
    width, size = b.width, b.head_size
    heads = width // size
    qkv = b.module(hidden, "attn.c_attn")
    if b.flag("multi_query", True):
        q, k, v = b.split(qkv, [("B", "S", width), ("B", 1, "S", size), ("B", 1, "S", size)])
        q = b.view(q, ("B", heads, "S", size), swaps=True)
    else:
        q, k, v = b.split(b.view(qkv, ("B", heads, "S", 3 * size), swaps=True), [("B", heads, "S", size)] * 3)
    return attended(b, q, k, v, "attn.c_proj", Scores(dropout=b.fraction("attn_pdrop", default=0.1)))


def opt(b: Builder, hidden: Tensor) -> Tensor:
    """OPTDecoderLayer: norms before the branches, or after them (350m)."""
    before, drop = b.flag("do_layer_norm_before", True), b.fraction("dropout", default=0.1)
    residual = hidden
    if before:
        hidden = b.norm(hidden, "self_attn_layer_norm")
    hidden = b.dropout(opt_attention(b, hidden), drop)
    hidden = b.add(residual, hidden)
    if not before:
        hidden = b.norm(hidden, "self_attn_layer_norm")

    hidden = b.view(hidden, ("B", "S", b.width))
    residual = hidden
    if before:
        hidden = b.norm(hidden, "final_layer_norm")
    hidden = b.module(hidden, "fc1")
    hidden = b.activation(b.text("activation_function", default="relu"), hidden)
    hidden = b.dropout(b.module(hidden, "fc2"), drop)
    hidden = b.add(residual, hidden)
    return hidden if before else b.norm(hidden, "final_layer_norm")


def opt_attention(b: Builder, hidden: Tensor) -> Tensor:
    size = b.head_size
    shape: tuple[Dim, ...] = ("B", b.width // size, "S", size)
    q = b.view(b.scale(b.module(hidden, "self_attn.q_proj"), "scaled q"), shape, swaps=True)
    k, v = b.heads(hidden, "self_attn.k_proj", size), b.heads(hidden, "self_attn.v_proj", size)
    return attended(b, q, k, v, "self_attn.out_proj")


def gpt_neox(b: Builder, hidden: Tensor) -> Tensor:
    """GPTNeoXLayer: parallel branches (or not), partial rotary embeddings."""
    drop = b.fraction("hidden_dropout")
    branch = b.dropout(neox_attention(b, b.norm(hidden, "input_layernorm")), drop)
    mlp_names = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    if b.flag("use_parallel_residual", True):
        mlp = b.dropout(up_down_mlp(b, b.norm(hidden, "post_attention_layernorm"), *mlp_names), drop)
        return b.add(b.add(mlp, branch), hidden)
    branch = b.add(branch, hidden)
    mlp = b.dropout(up_down_mlp(b, b.norm(branch, "post_attention_layernorm"), *mlp_names), drop)
    return b.add(mlp, branch)


def neox_attention(b: Builder, hidden: Tensor) -> Tensor:
    size = b.head_size
    heads = b.width // size
    qkv = b.view(b.module(hidden, "attention.query_key_value"), ("B", heads, "S", 3 * size), swaps=True)
    q, k, v = b.split(qkv, [("B", heads, "S", size)] * 3)
    q, k = b.rotary(q, k, *b.tables(int(size * b.rotary_share)), sliced=True)
    return attended(b, q, k, v, "attention.dense")


def phi(b: Builder, hidden: Tensor) -> Tensor:
    """PhiDecoderLayer: parallel branches, partial rotary embeddings."""
    drop = b.fraction("resid_pdrop")
    residual = hidden
    hidden = b.norm(hidden, "input_layernorm")
    norm = (lambda x, name: b.norm(x, name.replace("_norm", "_layernorm"))) if b.flag("qk_layernorm") else None
    branch = b.dropout(attention(b, hidden, rotate=partly_in_frame, norm_heads=norm, out="dense"), drop)
    mlp = b.dropout(up_down_mlp(b, hidden, "mlp.fc1", "mlp.fc2"), drop)
    return b.add(b.add(branch, mlp), residual)


def cohere(b: Builder, hidden: Tensor) -> Tensor:
    """CohereDecoderLayer: parallel branches, a LayerNorm by hand, rotary embeddings in fp32."""
    residual = hidden
    hidden = b.cohere_norm(hidden, "input_layernorm")
    norm = b.cohere_norm if b.flag("use_qk_norm") else None
    branch = attention(b, hidden, rotate=_in_fp32, norm_heads=norm, norm_before_transpose=True)
    mlp = gated_mlp(b, hidden)
    return b.add(b.add(residual, branch), mlp)


def _in_fp32(b: Builder, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """Heads cast to fp32, turned, cast back (modeling_cohere.py)."""
    dtype = q.dtype
    q, k = b.cast(q, "fp32"), b.cast(k, "fp32")
    q_embed, k_embed = b.rotary(q, k, *b.tables(b.head_size))
    return b.cast(q_embed, dtype), b.cast(k_embed, dtype)
