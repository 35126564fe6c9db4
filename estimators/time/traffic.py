"""Bytes that a micro-step moves through the card's memory outside matrix products: formulas T.5-T.8."""

from __future__ import annotations

from estimators.run import Run
from estimators.time.flops import RECOMPUTED
from estimators.time.towers import streams
from estimators.values import dataclass

# How often a packed weight is expanded per micro-step (forward, backward), and what that moves per element.
PACKED_BYTES = {"nf4": 0.5625, "nf4-double": 0.516, "gptq4": 0.53, "int8": 1.0}
AUTOCAST_BYTES = 6  # fp32 read, 16-bit written, per parameter and micro-step


@dataclass(frozen=True, slots=True)
class Traffic:
    """Amounts of one micro-step, forward and backward apart where it matters; bytes unless it says otherwise.

    ``forward``/``backward`` are 2 x elements at the ends of products (times ``ACTIVATION_MOVES``); ``logits`` and
    ``scores`` are counts (times bytes each); ``packed`` bytes of expanding 4-bit weights per pass; ``casts`` bytes.
    """

    forward: float
    backward: float
    logits: float
    scores: float
    packed: float
    passes: float  # over the blocks: 2 of forward and backward, and the share that runs again
    casts: float


def traffic(run: Run) -> Traffic:
    """T.5 for one micro-step. Llama-2-7B, s = 4096, b = 2: ``forward`` 2 x 8192 tokens x 2.54e6 elements = 41.6e9."""
    load, settings = run.workload, run.settings
    again = RECOMPUTED[load.checkpointing][0]
    if load.checkpointing == "selective":
        again = 1.0  # products are kept, what lies between them is not
    ends = scores = 0.0
    quantised = 0
    found = streams(run).streams
    for stream in found:
        work, tokens = stream.work, load.micro_batch * stream.rows * stream.length
        ends += 2.0 * tokens * work.moved * (2 if settings.compute_dtype == "fp32" else 1)
        quantised += work.quantised
        if run.attention == "eager":
            scores += float(tokens) * stream.length * sum(layers * heads for layers, heads, _, _, _ in work.pairs)
    text = found[0]
    logits = float(load.micro_batch * text.rows * text.length) * text.work.vocabulary
    packed = quantised * (PACKED_BYTES.get(load.quant, 0.5625) + 4.0)
    casts = AUTOCAST_BYTES * run.model.num_params if settings.autocast and settings.param_dtype == "fp32" else 0
    return Traffic(ends, ends * (2 + again), logits, scores, packed, 2 + again, float(casts))
