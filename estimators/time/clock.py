"""The seconds of one optimizer step in the order in which they pass: formulas S.1, S.2 of ``docs/formulas-time.md``."""

from __future__ import annotations

from estimators.run import Run
from estimators.time.amounts import SILENT, amounts
from estimators.time.card import Unknown, rates_of
from estimators.time.network import links
from estimators.time.offload import host_rate
from estimators.time.phases import FORMULAS, Waits, compute, costs, part_seconds, waits
from estimators.values import dataclass

EXPECTED = 1
LOGITS = list(FORMULAS).index("logits")
ON_STEP = slice(list(FORMULAS).index("optimizer"), None)
NOTHING = Waits((0.0,) * 3, (0.0,) * 3, (0.0,) * 3, (0.0,) * 3, (0.0, 0.0), 0.0)


@dataclass(frozen=True, slots=True)
class Clock:
    """Expected seconds of each phase; they sum to ``StepTime.step_seconds.expected``.

    ``earlier``: all micro-batches but the last. Then the last one: ``forward``; ``loss`` (what moves the logits);
    ``backward``; ``reduce`` (communication of that backward which computing does not hide). Then ``step``.
    """

    earlier: float
    forward: float
    loss: float
    backward: float
    reduce: float
    step: float
    micro_steps: int

    @property
    def total(self) -> float:
        return self.earlier + self.forward + self.loss + self.backward + self.reduce + self.step


def clock(run: Run, *, tflops: float | None = None, bandwidth: float | None = None) -> Clock | Unknown:
    """The phases of a step, or which figure of the card is missing; arguments as of ``step_time``."""
    card = rates_of(run.cluster, run.settings.compute_dtype, tflops, bandwidth)
    if isinstance(card, Unknown):
        return card
    work, network, cost = amounts(run), links(run.cluster, card), costs(EXPECTED)
    forward, backward = compute(work, card, cost, EXPECTED)
    silent = work.sent is SILENT and work.offload.is_empty
    host = host_rate(card, network.per_node)[EXPECTED] if not work.offload.is_empty else 1.0
    found = waits(work, network, sum(forward), sum(backward), host, cost, EXPECTED) if not silent else NOTHING
    after = sum(part_seconds(work, card, network, EXPECTED)[ON_STEP])
    k = work.micro_steps
    ahead, behind = sum(forward) + sum(found.every_forward), sum(backward) + sum(found.every_backward)
    loss = forward[LOGITS]
    first = sum(forward) + sum(found.first_forward)
    earlier = first + (k - 2) * ahead + (k - 1) * behind if k > 1 else 0.0
    last = ahead if k > 1 else first
    reduce = found.last_backward[0] + found.last_backward[1] + found.between
    return Clock(earlier, last - loss, loss, sum(backward) + found.last_backward[2], reduce, after + sum(found.step), k)
