"""Cross-entropy over a vocabulary as stacks compute it, on a tape: what is kept, what comes and goes."""

from __future__ import annotations

from collections.abc import Callable

from estimators.activations.builder import Builder
from estimators.activations.tape import Dim, Gradient, Tensor
from estimators.values import dataclass

CHUNKS = 8  # pieces of a chunked loss (torchtune num_output_chunks)


@dataclass(frozen=True, slots=True)
class Loss:
    """How logits become a loss, and who reads them afterwards.

    ``kind``: plain (fp32 copy and log_softmax), chunked (both for one piece at a time), fused (Liger: logits of a few
    rows at a time, gradients made in the forward). ``kernel``: of a plain loss, in-place (the gradient overwrites the
    logits) or compiled (upcast inside the kernel). ``fp32_outputs``: accelerate copies outputs to fp32. ``held``: the
    loop keeps the outputs until backward is over. ``reads_logits``: the trainer makes a shifted copy for its metrics.
    ``upcasts``: where logits become fp32, in the loss, in the model (transformers before 4.46: nothing else holds the
    16-bit ones) or never (litgpt, older models). ``shifts``: what is cut by a token; transformers before 4.49 copied the logits.
    ``cloned_outputs``: DDP that looks for unused parameters clones every output (_DDPSink of torch/nn/parallel/distributed.py).
    """

    kind: str = "plain"
    kernel: str | None = None
    fp32_outputs: bool = False
    cloned_outputs: bool = False
    held: bool = False
    reads_logits: bool = False
    rows: int | None = None  # of one piece of a fused loss
    adds_copies: bool = (
        True  # liger-kernel from 0.6.2: a piece's gradient of the head is added, in fp32, not accumulated
    )
    accumulates: bool = True  # liger-kernel from 0.8.1: an fp32 gradient of the head takes 16-bit products in
    upcasts: str = "loss"
    shifts: str = "labels"


def causal_loss(b: Builder, logits: Tensor, loss: Loss) -> Tensor:
    """ForCausalLMLoss of transformers/loss/loss_utils.py, or what replaces its kernel."""
    if loss.upcasts == "never" and loss.kind == "chunked":
        return by_chunk(b, logits)
    if loss.shifts == "logits":
        return of_shifted_copy(b, logits, loss)
    if loss.kernel == "in-place":
        return in_place(b, logits)
    if loss.kernel == "compiled":
        return compiled(b, logits)
    if loss.kind == "chunked":
        return chunked(b, logits)
    return plain(b, logits)


def finished(b: Builder, logits: list[Tensor], result: Tensor, loss: Loss) -> Tensor:
    """What wrappers and the loop do with the outputs, of which ``logits`` has the only reference: it is emptied."""
    outputs = logits.pop()
    outputs = b.cast(outputs, "fp32") if loss.fp32_outputs else outputs
    if loss.cloned_outputs:
        outputs = b.contiguous(outputs, name="outputs, cloned by DDP")
    if loss.reads_logits:
        copy = b.tape.new("shifted copy for metrics", outputs.shape, outputs.dtype)
        del copy
    if loss.held:
        b.held.append(outputs)
    return result


def plain(b: Builder, logits: Tensor, labels: Tensor | None = None) -> Tensor:
    """Formula L.1: ``logits.float()``, labels shifted into a copy, cross_entropy: keeps log_softmax in fp32, and the labels."""
    logits = b.cast(logits, "fp32")
    if labels is None:
        labels = shifted_labels(b)
    return nll_loss(b, b.softmax(logits, name="log_softmax"), labels)


def of_shifted_copy(b: Builder, logits: Tensor, loss: Loss) -> Tensor:
    """``logits.float()``, then ``logits[..., :-1, :].contiguous()``; both live until the loss is there.

    transformers before 4.49 (loss/loss_utils.py; before 4.46 in every model's forward). A kernel in the place of
    nn.CrossEntropyLoss gets the copy.
    """
    if loss.upcasts != "never":
        logits = b.cast(logits, "fp32")
    shifted = b.contiguous(b.narrow(logits, logits.shape), name="shifted logits")
    if loss.kernel == "in-place":
        return in_place(b, shifted)
    return nll_loss(b, b.softmax(shifted, name="log_softmax"), shifted_labels(b))


def by_chunk(b: Builder, logits: Tensor) -> Tensor:
    """litgpt/utils.py ``chunked_cross_entropy`` over the list that ``lm_head_chunk_size`` makes: in the dtype of the
    logits, which the loop holds; gradients come and go chunk by chunk."""
    tape, shape, dtype = b.tape, logits.shape, logits.dtype
    labels = shifted_labels(b)
    kept = tape.new("log-probabilities", shape, dtype)
    result = tape.new("loss", (1,), "fp32")
    chunk = (*shape[:-1], -(-int(shape[-1]) // CHUNKS))

    def backward(_: Tensor) -> list[Gradient]:
        made = [tape.new(name, chunk, dtype) for name in ("gradient of nll_loss", "gradient of a chunk's logits")]
        return [Tensor(made[-1].storage, shape, dtype)]

    keep = [("log_softmax output", kept), ("labels", labels)]
    return tape.record(result, "cross_entropy by chunk", [logits], keep, backward)


def shifted_labels(b: Builder) -> Tensor:
    """Padded on the right, cut on the left, made contiguous."""
    padded = b.tape.new("padded labels", ("B", "S"), "int64")
    labels = b.tape.new("labels", ("B", "S"), "int64")
    del padded
    return labels


def nll_loss(b: Builder, log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """Its gradient is a whole tensor of zeros with one entry a row."""
    tape, shape, dtype = b.tape, log_probabilities.shape, log_probabilities.dtype
    result = tape.new("loss", (1,), "fp32")
    keep = [("log_softmax output", log_probabilities), ("labels", labels)]
    return tape.record(result, "nll_loss", [log_probabilities], keep,
                       lambda g: [tape.new("gradient of nll_loss", shape, dtype)])  # fmt: skip


def chunked(b: Builder, logits: Tensor) -> Tensor:
    """L.4: the fp32 copy exists for one piece at a time; log_softmax of every piece is kept."""
    labels = shifted_labels(b)
    width = -(-int(logits.shape[-1]) // CHUNKS)  # as many elements as 1/CHUNKS of the rows
    pieces = b.split(logits, [(*logits.shape[:-1], width)] * CHUNKS)
    total = plain(b, pieces.pop(), labels)
    while pieces:
        total = b.add(total, plain(b, pieces.pop(), labels))
    return total


def in_place(b: Builder, logits: Tensor) -> Tensor:
    """L.2. Liger, Unsloth, Apex: the logits are kept and overwritten with their own gradient."""
    tape, shape, dtype = b.tape, logits.shape, logits.dtype
    labels = shifted_labels(b)
    rows = tape.new("logsumexp", shape[:-1], "fp32")
    result = tape.new("loss", (1,), "fp32")
    storage = logits.storage

    def backward(_: Tensor) -> list[Gradient]:
        return [Tensor(storage, shape, dtype)]

    keep = [("logits, overwritten", logits), ("logsumexp", rows), ("labels", labels)]
    return tape.record(result, "cross_entropy in place", [logits], keep, backward)


def compiled(b: Builder, logits: Tensor) -> Tensor:
    """A compiled cross_entropy: the logits are kept as they are, the upcast happens inside the kernels."""
    tape, shape, dtype = b.tape, logits.shape, logits.dtype
    labels = shifted_labels(b)
    rows = [tape.new(name, shape[:-1], "fp32") for name in ("row maximum", "logsumexp")]
    result = tape.new("loss", (1,), "fp32")
    keep = [("logits", logits), *((r.storage.name, r) for r in rows), ("labels", labels)]
    return tape.record(result, "compiled cross_entropy", [logits], keep,
                       lambda g: [tape.new("gradient of logits", shape, dtype)])  # fmt: skip


def fused_linear(b: Builder, hidden: Tensor, name: str, loss: Loss) -> Tensor:
    """L.3. LigerFusedLinearCrossEntropy (liger_kernel/ops/fused_linear_cross_entropy.py): pieces of rows; gradients of the
    hidden states and of the head's weight are made in the forward and kept."""
    tape, weight, rows = b.tape, b.need(f"{name}.weight"), loss.rows
    vocabulary, dtype = weight.shape[0], b.autocast or hidden.dtype
    piece: tuple[Dim, ...] = (rows, vocabulary) if rows else ("B", "S", hidden_width(hidden))
    data = [tape.new(n, ("B", "S"), "int64") for n in ("padded labels", "labels")]
    data += [tape.new("loss of every row", ("B", "S"), "fp32"), tape.new("rows that count", ("B", "S"), "bool")]
    into = tape.new("gradient of hidden states", hidden.shape, hidden.dtype)
    into_weight = tape.new("gradient of the head", weight.shape, weight.dtype) if weight.trainable else None
    turned = tape.new("head, cast and turned", weight.shape, dtype) if weight.dtype != dtype else None
    inputs = tape.new("rows, cast", (*piece[:-1], hidden_width(hidden)), dtype) if hidden.dtype != dtype else None
    before = tape.new("logits of the piece before", piece, dtype)
    logits = tape.new("logits of a piece", piece, dtype)
    del turned, before, inputs
    cast = b.weight_for_product(weight)  # autocast holds that of a weight that trains
    del cast
    in_one = loss.accumulates and b.device.name == "cuda" and weight.dtype == "fp32" != dtype  # addmm(out_dtype=fp32)
    if into_weight is not None and not in_one and (loss.adds_copies or weight.dtype != dtype):
        product = tape.new("gradient of the head, of a piece", weight.shape, dtype)
        upcast = tape.new("the same in fp32", weight.shape, "fp32") if loss.adds_copies and dtype != "fp32" else None
        del product, upcast
    del logits, data
    result = tape.new("loss", (1,), "fp32")
    keep = [("gradient of hidden states", into), ("gradient of the head", into_weight)]
    held: list[Gradient] = [into, into_weight]
    release: Callable[[], None] = held.clear

    def backward(_: Tensor) -> list[Gradient]:
        made = list(held)
        release()
        return made

    del into, into_weight
    return tape.record(result, "fused_linear_cross_entropy", [hidden, weight], keep, backward)


def hidden_width(hidden: Tensor) -> int:
    """Elements of a row: where rows are unknown, a piece has about as many logits as there are hidden states."""
    return int(hidden.shape[-1])


def fused_rows(tokens: int, vocabulary: int, width: int) -> int:
    """Rows of one piece of Liger's loss: the power of two above tokens / ceil(vocabulary / width).

    >>> fused_rows(2048, 128256, 4096)
    64
    """
    wanted = -(-tokens // -(-vocabulary // width))
    return 1 << (wanted - 1).bit_length()
