"""GptOssDecoderLayer: transformers/models/gpt_oss/modeling_gpt_oss.py. Attention sinks; clamped experts with biases.

transformers has no sdpa for it: without a flash kernel attention is eager.
"""

from __future__ import annotations

from estimators.activations.blocks.experts import experts, softmax_of_chosen
from estimators.activations.builder import Builder
from estimators.activations.tape import Gradient, Tensor
from estimators.activations.writes import clamp


def block(b: Builder, hidden: Tensor) -> Tensor:
    residual = hidden
    hidden = b.rms_norm_cast_last(hidden, "input_layernorm")
    hidden = attention(b, hidden)
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.rms_norm_cast_last(hidden, "post_attention_layernorm")
    weights, indices = softmax_of_chosen(b, hidden, "mlp.router", None)
    hidden = experts(b, hidden, weights, indices, act=clamped_gate)
    return b.add(residual, hidden)


def attention(b: Builder, hidden: Tensor) -> Tensor:
    size = b.head_size
    q, k, v = (b.heads(hidden, f"self_attn.{n}_proj", size) for n in "qkv")
    cos, sin = b.given("cos", (1, "S", size // 2)), b.given("sin", (1, "S", size // 2))
    q, k = turned(b, q, cos, sin), turned(b, k, cos, sin)
    if b.kernels.attention == "flash":
        output = b.attend(q, k, v, None)
    else:
        output = eager(b, q, k, v)
    return b.module(b.view(output, ("B", "S", int(q.shape[1]) * size)), "self_attn.o_proj")


def turned(b: Builder, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embeddings by halves, without negated copies."""
    half = (*x.shape[:-1], int(x.shape[-1]) // 2)
    first, second = b.split(x, [half, half])
    first_ = b.add(b.multiply(first, cos), b.multiply(second, sin))
    second_ = b.add(b.multiply(second, cos), b.multiply(first, sin))
    return b.cat([first_, second_], x.shape)


def eager(b: Builder, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """``eager_attention_forward`` with a sink beside each row of scores; softmax in the stream's dtype."""
    heads = q.shape[1]
    keys, values = b.repeat_kv(k, heads), b.repeat_kv(v, heads)
    weights = b.scale(b.matmul(q, keys, (*q.shape[:-1], keys.shape[2]), "scores"), "scaled scores")
    b.given("mask of the other layers", (1, 1, "S", "S"))  # with a window and without: both are made
    weights = b.add(weights, b.given("mask", (1, 1, "S", "S")), "masked scores")
    weights = probabilities(b, weights)
    output = b.matmul(weights, values, (*q.shape[:-1], v.shape[-1]), "attention output")
    b.kept_until_return.append(weights)
    return b.contiguous(b.view(output, ("B", "S", heads, v.shape[-1]), swaps=True))


def probabilities(b: Builder, weights: Tensor) -> Tensor:
    """Sinks beside the scores, minus the row's largest, softmax, without the sinks."""
    tape, dtype = b.tape, weights.dtype
    batch, heads, rows, columns = weights.shape
    single = (batch, heads, rows, 1)
    sinks = b.need("self_attn.sinks")
    column = tape.record(tape.new("sinks", (1,), dtype), "expand", [sinks], [],
                         lambda g: [tape.new("gradient of sinks", sinks.shape, sinks.dtype)])  # fmt: skip
    column.shape = single
    combined = b.cat([weights, column], (batch, heads, rows, "S+1"))
    wide = tuple(combined.shape)
    largest, places = tape.new("largest", single, dtype), tape.new("places of the largest", single, "int64")
    tape.record(largest, "max", [combined], [("places of the largest", places)],
                lambda g: [tape.new("gradient of max", wide, dtype)])  # fmt: skip
    combined = difference(b, combined, largest)
    probs = b.softmax(combined, None, "attention softmax")
    return b.narrow(probs, (batch, heads, rows, columns))


def difference(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    """x - y: the gradient of y is negated before it is summed over the rows."""
    tape, shape, dtype, rows = b.tape, tuple(x.shape), x.dtype, tuple(y.shape)

    def backward(g: Tensor) -> list[Gradient]:
        negated = tape.new("negated", shape, dtype)
        into = tape.new("gradient of the largest", rows, dtype)
        del negated
        return [g, into]

    return tape.record(tape.new("difference", shape, dtype), "sub", [x, y], [], backward)


def clamped_gate(b: Builder, made: Tensor, narrow: int) -> Tensor:
    """(clamp(up) + 1) x clamp(gate) x sigmoid(alpha x clamp(gate)), even and odd columns of one product."""
    half = (*made.shape[:-1], narrow)
    gate, up = b.narrow(made, half), b.narrow(made, half)
    gate = clamp(b, gate, "gate")
    up = clamp(b, up, "up")
    glu = b.multiply(gate, b.pointwise("sigmoid", b.scale(gate), "output"), "gate x sigmoid")
    return b.multiply(b.shift(up), glu, "up x glu")
