"""Older decoders that write their attention themselves: gptj, codegen, gpt_neo, bloom, mpt, falcon."""

from __future__ import annotations

from estimators.activations.attention import Scores
from estimators.activations.blocks.pieces import attended, up_down_mlp
from estimators.activations.builder import Builder
from estimators.activations.tape import Dim, Tensor


def gptj(b: Builder, hidden: Tensor) -> Tensor:
    """GPTJBlock: parallel branches; attention scores in fp32 when eager."""
    normed = b.norm(hidden, "ln_1")
    return _parallel(b, hidden, gptj_attention(b, normed), normed)


def codegen(b: Builder, hidden: Tensor) -> Tensor:
    """CodeGenBlock: as GPT-J, with one projection for q, v and k."""
    normed = b.norm(hidden, "ln_1")
    return _parallel(b, hidden, codegen_attention(b, normed), normed)


def _parallel(b: Builder, residual: Tensor, branch: Tensor, hidden: Tensor) -> Tensor:
    drop = b.fraction("resid_pdrop")
    branch = b.dropout(branch, drop)
    mlp = b.dropout(up_down_mlp(b, hidden, "mlp.fc_in", "mlp.fc_out"), drop)
    return b.add(b.add(branch, mlp), residual)


def gptj_attention(b: Builder, hidden: Tensor) -> Tensor:
    size, shape = b.head_size, _by_token(b)
    q = b.view(b.module(hidden, "attn.q_proj"), shape)
    k = b.view(b.module(hidden, "attn.k_proj"), shape)
    v = b.view(b.view(b.module(hidden, "attn.v_proj"), shape), ("B", shape[2], "S", size), swaps=True)
    return _turned_and_attended(b, q, k, v)


def codegen_attention(b: Builder, hidden: Tensor) -> Tensor:
    """q, v and k are slices of one product; its cosines are fp32, so that heads are cast back."""
    size, shape, width = b.head_size, _by_token(b), b.width
    qkv = b.view(b.module(hidden, "attn.qkv_proj"), ("B", "S", 3 * width))
    q, v, k = b.split(qkv, [("B", "S", width)] * 3)
    q, k, v = (b.view(t, shape) for t in (q, k, v))
    v = b.view(v, ("B", shape[2], "S", size), swaps=True)
    return _turned_and_attended(b, q, k, v, "fp32")


def _by_token(b: Builder) -> tuple[Dim, ...]:
    return ("B", "S", b.width // b.head_size, b.head_size)


def _turned_and_attended(b: Builder, q: Tensor, k: Tensor, v: Tensor, tables: str = "") -> Tensor:
    """Rotary embeddings on [B, S, heads, d], each call with repeated cosines of its own."""
    turns, size = b.number("rotary_dim", default=b.head_size), b.head_size

    def pieces(x: Tensor) -> tuple[Tensor, Tensor]:
        return b.narrow(x, (*x.shape[:-1], turns)), b.narrow(x, (*x.shape[:-1], size - turns))

    def turned(x: Tensor) -> Tensor:
        sin, cos = (b.tape.new(f"repeated {name}", (1, "S", 1, turns), tables or b.stream) for name in ("sin", "cos"))
        return b.rotated(x, cos, sin)

    k_rot, k_pass = pieces(k)
    q_rot, q_pass = pieces(q)
    k_rot = turned(k_rot)
    q_rot = turned(q_rot)
    k, q = b.cat([k_rot, k_pass], k.shape), b.cat([q_rot, q_pass], q.shape)
    heads: tuple[Dim, ...] = ("B", q.shape[2], "S", size)
    q, k = b.view(q, heads, swaps=True), b.view(k, heads, swaps=True)
    q, k = b.cast(q, v.dtype), b.cast(k, v.dtype)
    scores = Scores(in_fp32=True, upcast=False, dropout=b.fraction("attn_pdrop"))
    return attended(b, q, k, v, "attn.out_proj", scores)


def gpt_neo(b: Builder, hidden: Tensor) -> Tensor:
    """GPTNeoBlock: always eager, scores in fp32, masked by ``torch.where``."""
    drop = b.fraction("resid_dropout")
    residual = hidden
    hidden = b.norm(hidden, "ln_1")
    branch = b.dropout(neo_attention(b, hidden), drop)
    hidden = b.add(branch, residual)

    residual = hidden
    hidden = b.norm(hidden, "ln_2")
    mlp = b.dropout(up_down_mlp(b, hidden, "mlp.c_fc", "mlp.c_proj"), drop)
    return b.add(residual, mlp)


def neo_attention(b: Builder, hidden: Tensor) -> Tensor:
    q, k, v = (b.heads(hidden, f"attn.attention.{n}_proj", b.head_size) for n in "qkv")
    q, k, dtype = b.cast(q, "fp32"), b.cast(k, "fp32"), v.dtype
    weights = b.matmul(q, k, (*q.shape[:-1], "S"), "scores")
    weights = b.where(None, weights)  # its condition is a buffer of the module
    mask = b.mask()
    if mask is not None:
        weights = b.add(weights, mask)
    weights = b.softmax(weights, name="attention softmax")
    weights = b.cast(weights, dtype)
    weights = b.dropout(weights, b.fraction("attention_dropout"))
    output = b.matmul(weights, v, q.shape, "attention output")
    b.kept_until_return.append(weights)
    output = b.contiguous(b.view(output, ("B", "S", q.shape[1], b.head_size), swaps=True))
    return b.module(b.view(output, ("B", "S", b.width)), "attn.attention.out_proj")


def mpt(b: Builder, hidden: Tensor) -> Tensor:
    """MptBlock: always eager, ALiBi added to scores in fp32."""
    residual = hidden
    normed = b.norm(hidden, "norm_1")
    branch = mpt_attention(b, normed)
    hidden = b.add(branch, residual)
    normed = b.norm(hidden, "norm_2")
    residual = hidden
    output = b.module(b.activation("gelu", b.module(normed, "ffn.up_proj")), "ffn.down_proj")
    output = b.add(output, residual)
    del branch
    return output


def mpt_attention(b: Builder, hidden: Tensor) -> Tensor:
    size, width = b.head_size, b.width
    heads = width // size
    mixed = b.module(hidden, "attn.Wqkv")
    q, k, v = b.split(mixed, [("B", "S", width)] * 3)
    q, k, v = (b.view(t, ("B", heads, "S", size), swaps=True) for t in (q, k, v))
    scores = b.scale(b.matmul(q, k, ("B", heads, "S", "S"), "scores"), "scaled scores")
    scores = b.add(scores, b.given("alibi", (heads, 1, "S"), "fp32"))
    scores = b.where(b.given("mask", ("B", 1, "S", "S"), "bool"), scores)
    weights = b.cast(b.softmax(b.cast(scores, "fp32"), name="attention softmax"), v.dtype)
    output = b.matmul(weights, v, q.shape, "attention output")
    b.kept_until_return.append(weights)
    output = b.contiguous(b.view(output, ("B", "S", heads, size), swaps=True))
    return b.module(b.view(output, ("B", "S", width)), "attn.out_proj")
