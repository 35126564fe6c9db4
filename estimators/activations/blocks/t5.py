"""T5Block, MT5Block, UMT5Block: transformers/models/t5/modeling_t5.py.

The position bias is computed in the first block of a stack and added in all of them (UMT5 computes one in each); cross
attention adds zeros, made in the first block. Its gradient is summed over the blocks until it reaches the table.
"""

from __future__ import annotations

from estimators.activations.blocks.two_way import Names, heads, outside, trains
from estimators.activations.builder import Builder
from estimators.activations.functions import module
from estimators.activations.tape import Tensor
from estimators.activations.writes import masked_fill


def t5(b: Builder, hidden: Tensor) -> Tensor:
    """A block of the encoder, or of the decoder where it has cross attention; the first of its stack has the table."""
    decoder = any(name.startswith("layer.1.EncDecAttention") for name in b.parameters)
    hidden, _weights = attention_layer(b, hidden, "layer.0", "SelfAttention", causal=decoder)
    if decoder:
        states = outside(b, "encoder states", ("B", "S", b.width))
        hidden, _weights = attention_layer(b, hidden, "layer.1", "EncDecAttention", states=states)
    last = "layer.2" if decoder else "layer.1"
    forwarded = t5_norm(b, hidden, f"{last}.layer_norm")
    with b.tape.inside(f"{last}.DenseReluDense"):  # which ZeRO-3 gives the weight of ``wo``: it asks for its dtype
        forwarded = feed_forward(b, forwarded, f"{last}.DenseReluDense")
    return b.add(hidden, b.dropout(forwarded, b.fraction("dropout_rate", default=0.1)))


@module
def t5_norm(b: Builder, x: Tensor, name: str) -> Tensor:
    """T5LayerNorm: the variance in fp32, the product promoted by it, the weight in its own dtype."""
    weight = b.need(f"{name}.weight")
    upcast = b.cast(x, "fp32")
    variance = b.mean(b.power(upcast, f"{name} upcast"), f"{name} variance")
    del upcast
    x = b.multiply(x, b.rsqrt(b.shift(variance), name), f"{name} normalised")
    return b.multiply(weight, b.cast(x, weight.dtype) if weight.dtype != "fp32" else x, f"{name} normalised")


def attention_layer(
    b: Builder, hidden: Tensor, layer: str, name: str, causal: bool = False, states: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """The block's frame has a name for the probabilities of the attention that ran last (``hidden_states, bias, _``)."""
    normed = t5_norm(b, hidden, f"{layer}.layer_norm")
    output, weights = attention(b, normed, f"{layer}.{name}", causal, states)
    return b.add(hidden, b.dropout(output, b.fraction("dropout_rate", default=0.1))), weights


def attention(
    b: Builder, hidden: Tensor, name: str, causal: bool, states: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    size, drop = b.number("d_kv", "head_dim"), b.fraction("dropout_rate", default=0.1)
    names = Names(*(f"{name}.{n}" for n in "qkvo"))
    source = hidden if states is None else states
    q = heads(b, b.module(hidden, names.q), size)
    k = heads(b, b.module(source, names.k), size)
    v = heads(b, b.module(source, names.v), size)
    bias = position_bias(b, name, q.dtype if states is not None else "")
    if b.text("model_type") != "umt5":  # returned, for the next block
        b.kept_until_return.append(bias)
    weights = None
    if b.kernels.attention == "eager":
        output, weights = eager(b, q, k, v, bias, b.mask() if causal else None, drop)
    else:
        output = b.sdpa(q, k, v, additive(b, bias, causal, states is not None))
        output = b.view(output, ("B", "S", q.shape[1], size), swaps=True)
    return b.module(b.view(output, ("B", "S", int(q.shape[1]) * size)), names.out), weights


def position_bias(b: Builder, name: str, zeros: str) -> Tensor:
    """The table looked up for every pair of positions; a stack's later blocks get that of the first.

    ``zeros``: of cross attention, the dtype of its queries, in which it makes zeros instead (``T5Attention.forward``).
    """
    shape = (1, b.number("num_heads", "num_attention_heads"), "S", "S")
    table = b.weight(f"{name}.relative_attention_bias.weight")
    first = b.weight("layer.0.SelfAttention.relative_attention_bias.weight") is not None
    if not first:
        flows = b.kernels.zeros_learn if zeros else trains(b)
        return outside(b, f"{name} position bias", shape, flows, counted=False, dtype=zeros)
    if zeros or table is None:
        made = b.tape.leaf("cross position bias", shape, zeros or b.stream, b.kernels.zeros_learn)
        b.leaves += [made] if made.needs_grad else []
        return made
    tape, rows = b.tape, table.shape
    places = tape.new("places in the table", ("S", "S"), "int64")
    with tape.inside(f"{name}.relative_attention_bias"):
        looked_up = tape.record(tape.new("position bias", shape, table.dtype), "embedding", [table],
                                [("places", places)], lambda g: [tape.new("gradient of the table", rows, g.dtype)])  # fmt: skip
    return looked_up


def additive(b: Builder, bias: Tensor, causal: bool, cross: bool) -> Tensor:
    """``create_position_bias_mask``: the looked-up table is permuted, so that the mask is a copy of it."""
    if causal:
        return masked_fill(b, bias, "of the future")
    return bias if cross else b.contiguous(bias)


def eager(
    b: Builder, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor | None, drop: float
) -> tuple[Tensor, Tensor]:
    """Scores without scaling, plus the bias, plus the mask; and the probabilities."""
    weights = b.scale(b.matmul(q, k, (*q.shape[:-1], k.shape[2]), "scores"))
    weights = b.add(weights, bias, "scores and bias")
    if mask is not None:
        weights = b.add(weights, mask, "masked scores")
    weights = b.softmax(weights, None, "attention softmax")
    weights = b.dropout(weights, drop, "attention dropout")
    output = b.matmul(weights, v, (*q.shape[:-1], v.shape[-1]), "attention output")
    return b.contiguous(b.view(output, ("B", "S", q.shape[1], v.shape[-1]), swaps=True)), weights


def feed_forward(b: Builder, hidden: Tensor, name: str) -> Tensor:
    """T5DenseActDense, or T5DenseGatedActDense where ``feed_forward_proj`` says gated; both bring what ``wo`` gets to its
    dtype, to fp32 under autocast, which casts it back."""
    kind, drop = b.text("feed_forward_proj", default="relu"), b.fraction("dropout_rate", default=0.1)
    act = {"gated-gelu": "gelu_new"}.get(kind, kind.removeprefix("gated-"))
    if kind.startswith("gated"):
        gate = b.activation(act, b.module(hidden, f"{name}.wi_0"))
        linear = b.module(hidden, f"{name}.wi_1")
        hidden = b.multiply(gate, linear, "act x linear")
    else:
        hidden = b.module(hidden, f"{name}.wi")
        hidden = b.activation(act, hidden)
    hidden = b.dropout(hidden, drop)
    last = b.weight(f"{name}.wo.weight") or b.weight(f"{name}.wo.base_layer.weight")
    if last is not None and last.dtype in ("fp32", "bf16", "fp16"):
        hidden = b.cast(hidden, last.dtype)
    return b.module(hidden, f"{name}.wo")
