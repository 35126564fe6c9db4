"""Floating point operations of a step: the model's own (for MFU) and those that run (for time).

A multiply-add counts as 2. Formulas T.1-T.4 of ``docs/formulas-time.md``.
"""

from __future__ import annotations

from estimators.run import Run
from estimators.time.shapes import TokenWork
from estimators.time.towers import streams
from estimators.values import dataclass

# Share of the forward pass of checkpointed blocks that runs again in backward: (products, attention).
RECOMPUTED = {"none": (0.0, 0.0), "full": (1.0, 1.0), "offload": (1.0, 1.0), "every-2": (0.5, 0.5),
              "selective": (0.5, 0.0)}  # fmt: skip
BACKWARD_ATTENTION = 2.5  # a flash kernel's backward, in forwards: it computes the scores again


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs of one micro-step on one GPU.

    ``forward`` and ``backward`` are matrix products, recompute included in ``backward``; ``attention_*`` likewise.
    ``model`` follows the MFU convention (no recompute, attention over the full square); ``hardware`` adds recompute.
    """

    forward: float
    backward: float
    attention_forward: float
    attention_backward: float
    model: float
    hardware: float

    @property
    def executed(self) -> float:
        return self.forward + self.backward + self.attention_forward + self.attention_backward


def attended(seq_len: int, window: int, causal: bool) -> float:
    """T.2: keys that one query meets on average.

    causal: (s + 1) / 2; with a window w < s: w - w (w - 1) / (2 s); otherwise s.

    >>> attended(4096, 0, True), attended(4096, 1024, True), attended(512, 0, False)
    (2048.5, 896.125, 512.0)
    """
    if not causal:
        return float(seq_len)
    if window and window < seq_len:
        return window - window * (window - 1) / (2 * seq_len)
    return (seq_len + 1) / 2


def attention_forward(work: TokenWork, seq_len: int, skips: bool) -> float:
    """T.2: FLOPs per token of scores and their sums, all layers: 2 x heads x (query + value width) x keys met.

    ``skips``: the kernel leaves out what the mask hides. Llama-2-7B at s = 4096: 2.15e9 of 4.29e9.
    """
    return sum(
        2.0 * layers * heads * width * (attended(seq_len, window, causal) if skips else seq_len)
        for layers, heads, width, window, causal in work.pairs
    )


def micro_flops(run: Run) -> Flops:
    """T.1-T.4 for one micro-step: micro_batch x seq_len tokens, and micro_batch images or clips where there are towers.

    forward 2 P; backward 2 P_input + 2 P_weight, with P the elements that multiply, P_input those that pass a
    gradient on, P_weight those that train; recompute adds 2 P_blocks x its share. Full training: 6 P, 8 P with
    checkpointing; LoRA: 4 P, 6 P.
    """
    load = run.workload
    again, attention_again = RECOMPUTED[load.checkpointing]
    skips = run.attention != "eager" and load.padding == "none"
    passes = BACKWARD_ATTENTION if run.attention != "eager" else 2.0
    sums = [0.0] * 6
    for stream in streams(run).streams:
        work, tokens = stream.work, load.micro_batch * stream.rows * stream.length
        forward = 2 * work.products
        backward = 2 * (work.input_grad + work.weight_grad)
        recompute = 2 * again * work.blocks
        scores, convention = (
            attention_forward(work, stream.length, skips),
            attention_forward(work, stream.length, False),
        )
        behind = 1.0 if work.input_grad else 0.0  # a frozen tower in front of everything that trains has no backward
        if not behind:
            recompute = 0.0
        model = forward + backward + (1 + 2 * behind) * convention
        for index, value in enumerate((
            forward, backward + recompute, scores, behind * scores * (passes + attention_again), model,
            model + recompute + behind * attention_again * convention,
        )):  # fmt: skip
            sums[index] += tokens * value
    return Flops(*sums)
