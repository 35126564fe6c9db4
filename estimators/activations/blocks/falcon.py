"""BloomBlock and FalconDecoderLayer: transformers/models/{bloom,falcon}/modeling_*.py."""

from __future__ import annotations

from estimators.activations.attention import Scores
from estimators.activations.blocks.pieces import attended, up_down_mlp
from estimators.activations.builder import Builder
from estimators.activations.tape import Dim, Gradient, Tensor
from estimators.errors import NotModelled

MLP = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
GELU_FORWARD, GELU_BACKWARD = 4, 5  # tensors alive at once inside BloomGelu's expressions


def bloom(b: Builder, hidden: Tensor) -> Tensor:
    """BloomBlock: always eager, ALiBi inside the product of queries and keys."""
    drop = b.fraction("hidden_dropout")
    normed = b.norm(hidden, "input_layernorm")
    first = normed if b.flag("apply_residual_connection_post_layernorm") else hidden
    branch = bloom_attention(b, normed, first, drop)
    normed = b.norm(branch, "post_attention_layernorm")
    residual = normed if b.flag("apply_residual_connection_post_layernorm") else branch
    inner = bloom_gelu(b, b.module(normed, MLP[0]))
    outer = b.module(inner, MLP[1])
    return b.add(residual, b.dropout(outer, drop))


def bloom_gelu(b: Builder, x: Tensor) -> Tensor:
    """GeLUFunction keeps its input and computes its derivative again in backward."""
    tape, shape, dtype = b.tape, x.shape, x.dtype
    scratch = [tape.new("gelu scratch", shape, dtype) for _ in range(GELU_FORWARD)]
    result = scratch.pop()
    scratch.clear()

    def backward(_: Tensor) -> list[Gradient]:
        made = [tape.new("gradient of gelu, scratch", shape, dtype) for _ in range(GELU_BACKWARD)]
        return [made.pop()]

    return tape.record(result, "GeLUFunction", [x], [("gelu input", x)], backward)


def bloom_attention(b: Builder, hidden: Tensor, residual: Tensor, drop: float) -> Tensor:
    """The residual is added inside, while the heads are alive."""
    size, heads = b.head_size, b.width // b.head_size
    fused = b.module(hidden, "self_attention.query_key_value")
    by_token: tuple[Dim, ...] = ("B", "S", heads, size)
    q, k, v = (b.view(b.narrow(fused, by_token), ("B", heads, "S", size), swaps=True) for _ in range(3))
    q, k, v = (b.contiguous(t) for t in (q, k, v))
    b.given("alibi", ("B", heads, 1, "S"))
    scores = b.view(b.matmul(q, k, ("B", heads, "S", "S"), "scores", scaled=True), ("B", heads, "S", "S"))
    mask = b.mask()
    weights = b.add(scores, mask) if mask is not None else scores
    probabilities = b.cast(b.softmax(weights, "fp32", "attention softmax"), q.dtype)
    probabilities = b.dropout(probabilities, b.fraction("attention_dropout"))
    context = b.matmul(probabilities, v, q.shape, "attention output")
    b.kept_until_return.append(probabilities)
    context = b.contiguous(b.view(context, by_token, swaps=True))
    output = b.module(b.view(context, ("B", "S", b.width)), "self_attention.dense")
    return b.add(residual, b.dropout(output, drop))


def falcon(b: Builder, hidden: Tensor) -> Tensor:
    """FalconDecoderLayer: parallel branches over one norm (7B) or two (40B), or one after the other (1B)."""
    new, parallel = b.flag("new_decoder_architecture"), b.flag("parallel_attn", True)
    drop, residual = b.fraction("hidden_dropout"), hidden
    if new and b.weight("ln_attn.weight") is not None:
        normed, for_mlp = b.norm(hidden, "ln_attn"), b.norm(hidden, "ln_mlp")
    else:
        normed = for_mlp = b.norm(hidden, "input_layernorm")
    branch = falcon_attention(b, normed)
    if not new and not parallel:
        residual = b.add(residual, b.dropout(branch, b.fraction("attention_dropout")))
        for_mlp = b.norm(residual, "post_attention_layernorm")
    output = up_down_mlp(b, for_mlp, *MLP, act=b.text("activation", default="gelu"))
    if new or parallel:
        output = b.add_in_place(output, branch)
    return b.add(residual, b.dropout(output, drop))


def falcon_attention(b: Builder, hidden: Tensor) -> Tensor:
    """Key-value heads are copied for every query (40B), or one head serves all of them (7B)."""
    size, heads = b.head_size, b.width // b.head_size
    if b.flag("alibi"):
        raise NotModelled("what autograd keeps of Falcon with ALiBi is not described")
    fused = b.module(hidden, "self_attention.query_key_value")
    q = b.narrow(fused, ("B", "S", heads, size))
    if b.flag("new_decoder_architecture"):
        kv = b.number("num_kv_heads", default=heads)
        q = b.contiguous(q)
        k, v = (b.repeat_kv(b.narrow(fused, ("B", kv, "S", size)), heads) for _ in range(2))
        k, v = (b.view(t, ("B", "S", heads, size)) for t in (k, v))
    elif b.flag("multi_query", True):
        k, v = (taken(b, fused, ("B", "S", 1, size)) for _ in range(2))
    else:
        k, v = (b.narrow(fused, ("B", "S", heads, size)) for _ in range(2))
    q, k, v = (b.view(t, ("B", t.shape[2], "S", size), swaps=True) for t in (q, k, v))
    k.strided, v.strided = (t.strided and t.shape[1] != 1 for t in (k, v))  # one head lies as its tokens do
    q, k = b.rotary(q, k, *b.tables(size))
    if b.kernels.attention == "eager":
        output = falcon_eager(b, q, k, v)
    elif b.kernels.attention == "sdpa":
        mask = b.given("mask", ("B", 1, "S", "S"), "bool")  # made even where nothing is padded
        if k.shape[1] == heads:
            return attended(b, q, k, v, "self_attention.dense", Scores(), mask)
        output = b.view(b.sdpa_by_parts(q, k, v, mask), ("B", "S", heads, size), swaps=True)
    else:
        output = b.view(b.sdpa(q, k, v), ("B", "S", heads, size), swaps=True)
    return b.module(b.view(output, ("B", "S", b.width)), "self_attention.dense")


def taken(b: Builder, fused: Tensor, shape: tuple[Dim, ...]) -> Tensor:
    """``qkv[..., [-1], :]``, one head by its index: a copy; in backward zeros as large as the whole product."""
    tape, before = b.tape, fused.shape
    return tape.record(tape.new("one head", shape, fused.dtype), "index", [fused], [],
                       lambda g: [tape.new("gradient of one head", before, g.dtype)])  # fmt: skip


def falcon_eager(b: Builder, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores divided in place, plus numbers of a mask, softmax in the stream's dtype; returned with the output."""
    heads = q.shape[1]
    scores = b.matmul(q, b.repeat_kv(k, heads), (*q.shape[:-1], "S"), "scores")
    scores = divided_in_place(b, scores)
    mask = b.given("mask", ("B", 1, "S", "S"))
    scores = b.softmax(b.add(scores, mask, "masked scores"), b.stream, "attention softmax")
    output = b.matmul(scores, b.repeat_kv(v, heads), q.shape, "attention output")
    b.kept_until_return.append(scores)
    return b.view(output, ("B", "S", heads, q.shape[-1]), swaps=True)


def divided_in_place(b: Builder, x: Tensor) -> Tensor:
    """``x /= number``: no new memory; a new gradient."""
    tape, shape, dtype = b.tape, x.shape, x.dtype
    return tape.record(Tensor(x.storage, shape, dtype, base=x.base), "div_", [x], [],
                       lambda g: [tape.new("gradient of scores", shape, dtype)])  # fmt: skip
