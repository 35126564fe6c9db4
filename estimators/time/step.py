"""Seconds of an optimizer step, as named parts that sum to it: formulas S.1-S.5 of ``docs/formulas-time.md``."""

from __future__ import annotations

from estimators.result import Interval
from estimators.run import Run
from estimators.time.amounts import SILENT, Amounts, amounts
from estimators.time.card import Rates, Unknown, rates_of
from estimators.time.constants import ENGINE_ERROR, MODEL_ERROR, NEAR_FULL, NEAR_FULL_COST
from estimators.time.network import Links, links
from estimators.time.phases import FORMULAS, RESOURCE, part_seconds
from estimators.values import cached_property, dataclass

FAST, EXPECTED, SLOW = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Part:
    """One named term of a step, in seconds: what it is and what it waits for."""

    name: str
    seconds: float
    resource: str
    formula: str


@dataclass(frozen=True)
class StepTime:
    """How long an optimizer step takes; the parts sum to ``step_seconds.expected``.

    ``model_flops`` and ``hardware_flops`` are those of a step on one GPU by the MFU convention (attention over the
    full square; hardware adds recompute), ``peak`` the datasheet's dense rate that MFU is a share of.
    """

    step_seconds: Interval
    expected: tuple[float, ...]  # seconds of each part, in the order of ``estimators.time.phases.FORMULAS``
    tokens: int  # per GPU and step
    model_flops: float
    hardware_flops: float
    peak: float
    notes: tuple[str, ...]

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        return tuple(
            Part(name, seconds, RESOURCE[name], FORMULAS[name])
            for name, seconds in zip(FORMULAS, self.expected, strict=True)
            if seconds
        )

    @cached_property
    def tokens_per_s_per_gpu(self) -> Interval:
        step = self.step_seconds
        return Interval(self.tokens / step.high, self.tokens / step.expected, self.tokens / step.low)

    @property
    def mfu(self) -> float:
        return self.model_flops / (self.step_seconds.expected * self.peak)

    @property
    def hfu(self) -> float:
        return self.hardware_flops / (self.step_seconds.expected * self.peak)

    @cached_property
    def bound_by(self) -> str:
        """What most of the step is spent on: a resource of ``estimators.time.phases.RESOURCE``."""
        spent: dict[str, float] = {}
        for resource, seconds in zip(RESOURCE.values(), self.expected, strict=True):
            spent[resource] = spent.get(resource, 0.0) + seconds
        return max(spent, key=lambda resource: spent[resource])

    def document(self) -> dict[str, object]:
        """The contract's ``time`` object."""
        return {
            "step_seconds": _ends(self.step_seconds),
            "tokens_per_s_per_gpu": _ends(self.tokens_per_s_per_gpu),
            "mfu": self.mfu,
            "hfu": self.hfu,
            "bound_by": self.bound_by,
            "parts": [{"name": p.name, "seconds": p.seconds, "resource": p.resource, "formula": p.formula}
                      for p in self.parts],
            "notes": list(self.notes),
        }  # fmt: skip


def _ends(interval: Interval) -> dict[str, float]:
    return {"low": interval.low, "expected": interval.expected, "high": interval.high}


def step_time(
    run: Run, *, tflops: float | None = None, bandwidth: float | None = None, filled: float | None = None
) -> StepTime | Unknown:
    """Time of one optimizer step, or which figure of the card is missing.

    ``tflops`` (dense, in the compute dtype) and ``bandwidth`` (GB/s) stand in for the catalogue's; ``filled`` is the
    share of the card that tensors take, for the cost of running near its limit.
    """
    card = rates_of(run.cluster, run.settings.compute_dtype, tflops, bandwidth)
    if isinstance(card, Unknown):
        return card
    work, network = amounts(run), links(run.cluster, card)
    expected = part_seconds(work, card, network, EXPECTED)
    fast, slow = _residual(run)
    notes = _notes(work, card, network)
    if filled is not None and filled >= NEAR_FULL.value:
        slow *= NEAR_FULL_COST.high
        notes = (*notes, f"{filled:.0%} of the card is taken: allocator retries may add a quarter to the step")
    total = sum(expected)
    low = min(total, sum(part_seconds(work, card, network, FAST)) * fast)
    high = max(total, sum(part_seconds(work, card, network, SLOW)) * slow)
    return StepTime(Interval(low, total, high), expected, work.tokens, work.model_flops, work.hardware_flops, card.peak,
                    notes)  # fmt: skip


def expected_seconds(run: Run, *, tflops: float | None = None, bandwidth: float | None = None) -> float | None:
    """Seconds of a step without interval or parts, for sweeps; None where the card has no figure."""
    card = rates_of(run.cluster, run.settings.compute_dtype, tflops, bandwidth)
    if isinstance(card, Unknown):
        return None
    return sum(part_seconds(amounts(run), card, links(run.cluster, card), EXPECTED))


def _residual(run: Run) -> tuple[float, float]:
    """S.5: what the interval carries beyond its constants, by what trains and which engine runs."""
    load = run.workload
    kind = MODEL_ERROR["packed" if load.method == "qlora" else "adapters" if load.has_adapters else "full"]
    engine = ENGINE_ERROR.get(run.strategy.engine, ENGINE_ERROR["elsewhere"])
    return kind.low * engine.low, kind.high * engine.high


def _notes(work: Amounts, card: Rates, network: Links) -> tuple[str, ...]:
    return (*card.notes, *(network.notes if work.sent is not SILENT else ()), *work.notes)
