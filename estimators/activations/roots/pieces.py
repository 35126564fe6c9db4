"""What the roots of several families are made of: lookups, convolutions over images and frames, losses over classes."""

from __future__ import annotations

from collections.abc import Sequence

from estimators.activations.builder import Builder
from estimators.activations.losses import nll_loss
from estimators.activations.streams import Over
from estimators.activations.tape import ZERO, Dim, Gradient, Node, Storage, Tensor
from estimators.activations.writes import expanded

IDS = "int64"


def over_ids(run: object) -> Over:
    """A piece over the token ids of a micro-batch."""
    return Over(lambda b: ("B", "S"), run, IDS)  # type: ignore[arg-type]


def nothing(b: Builder, shape: Sequence[Dim] = ("B", "S")) -> Tensor:
    """Data that is counted elsewhere: labels, a buffer of the module."""
    made = b.tape.new("data", shape, IDS)
    b.tape.forget(made)
    return made


def lookup(b: Builder, name: str, ids: Tensor, shape: Sequence[Dim] = ("B", "S")) -> Tensor:
    """``nn.Embedding``: keeps the ids. Its gradient is a whole table, which engines count where all roots end."""
    table, tape = b.need(f"{name}.weight"), b.tape
    made = tape.new(name, (*shape, table.shape[1]), table.dtype)

    def backward(g: Tensor) -> list[Gradient]:
        return [Tensor(Storage(tape, "gradient of a table", ZERO), table.shape, g.dtype)]

    if name == b.words and not table.trainable:
        return as_leaf(b, made)
    return tape.record(made, "embedding", [table], [(f"{name}: ids", ids)], backward)


def as_leaf(b: Builder, words: Tensor) -> Tensor:
    """Words of a frozen table that ask for a gradient (``enable_input_require_grads``): the graph holds the leaf."""
    if b.tape.grad:
        words.node = Node("leaf", [], None, [("words", words.storage)])
        b.leaves.append(words)
    return words


def convolution(b: Builder, x: Tensor, name: str, shape: Sequence[Dim]) -> Tensor:
    """A convolution whose output has ``shape``, channels last here: keeps its input and its weight; backward makes all
    its gradients at once."""
    x = b.cast(x, b.autocast or x.dtype)
    weight, bias, tape = b.need(f"{name}.weight"), b.weight(f"{name}.bias"), b.tape
    used = b.weight_for_product(weight)
    used_bias = b.weight_for_product(bias) if bias is not None else None
    result, before, dtype, needs = tape.new(name, shape, x.dtype), x.shape, x.dtype, x.needs_grad

    def backward(_: Tensor) -> list[Gradient]:
        into = tape.new(f"gradient of {name} input", before, dtype) if needs else None
        wanted = [w if w is not None and w.needs_grad else None for w in (used, used_bias)]
        return [into, *(tape.new("gradient of a weight", w.shape, dtype) if w is not None else None for w in wanted)]

    keep = [(f"{name} input", x if used.needs_grad else None), (f"{name} weight", used)]
    return tape.record(result, "convolution", [x, used, used_bias], keep, backward)


def parameter(b: Builder, name: str, shape: Sequence[Dim]) -> Tensor:
    """A parameter seen in a shape, or repeated for every row: a view; its gradient is summed."""
    weight, tape = b.need(name), b.tape
    view = tape.new(name, weight.shape, weight.dtype)
    tape.forget(view)
    tape.record(view, "view", [weight], [], lambda g: [g])
    return expanded(b, view, shape)


def cross_entropy(b: Builder, logits: Tensor) -> Tensor:
    """nn.CrossEntropyLoss in the dtype of the logits (fp32 under autocast), with labels as they came."""
    logits = b.cast(logits, "fp32") if b.autocast else logits
    return nll_loss(b, b.softmax(logits, name="log_softmax"), nothing(b))


def named(b: Builder, hidden: Tensor) -> Tensor:
    """Embeddings that the model's forward has a name for until it returns; blocks that need no gradient of their input
    do not keep it."""
    if not hidden.needs_grad:
        b.frame.append(hidden)
    return hidden
