"""Measured beside predicted, instant by instant and category by category, with the verdict of each.

``agrees`` means 0 bytes off for what is persistent, 1 % or 64 KiB for every other category, and the peak within 3 %.
Where activations end and logits begin is a matter of view (the final norm, the input of the head): the two are judged
by their sum. The total of an instant is a row of its own, ``all``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from estimators.memory import Estimate
from estimators.result import CATEGORIES, INSTANTS

PERSISTENT = ("params", "gradients", "master", "optimizer", "buffers")
PERSISTENT_AT = ("step",)  # where nothing is gathered, in flight or half reduced
NETWORK = ("activations", "logits")
RELATIVE, ABSOLUTE = 0.01, 64 * 1024
PEAK = 0.03
ALL = "all"

Bytes = Mapping[str, int]


@dataclass(frozen=True)
class Row:
    """One number: bytes predicted and measured of a category at an instant, in one place."""

    instant: str
    category: str
    place: str
    predicted: int
    measured: int
    judged: tuple[int, int] | None = None  # predicted and measured that decide, where they are not the row's own

    @property
    def error(self) -> float:
        """predicted / measured - 1; infinite where nothing was measured."""
        if self.measured:
            return self.predicted / self.measured - 1
        return float("inf") if self.predicted else 0.0

    @property
    def agrees(self) -> bool:
        predicted, measured = self.judged or (self.predicted, self.measured)
        off = abs(predicted - measured)
        if self.category in PERSISTENT and self.instant in PERSISTENT_AT:
            return off == 0
        return off <= max(ABSOLUTE, RELATIVE * measured)


def compare(measured: Mapping[str, Mapping[str, Bytes]], estimate: Estimate) -> list[Row]:
    """Rows of every instant that was measured. ``measured``: instant -> place -> category -> bytes of one rank.

    What an estimate says of a node's host RAM is shared out over its ranks.
    """
    ranks = estimate.run.cluster.gpus_per_node
    rows: list[Row] = []
    for name in (i for i in INSTANTS if i in measured):
        for place, share in (("gpu", 1), ("host", ranks)):
            found = measured[name].get(place, {})
            ours = {c: size // share for c, size in estimate[name].by_category(place).items()}
            if place == "host" and name == "load":
                continue  # copies of a checkpoint: there is none in a simulation
            both = [c for c in CATEGORIES if c in ours or c in found]
            network = (sum(ours.get(c, 0) for c in NETWORK), sum(found.get(c, 0) for c in NETWORK))
            rows.extend(
                Row(name, c, place, ours.get(c, 0), found.get(c, 0), network if c in NETWORK else None) for c in both
            )
            if both:
                rows.append(Row(name, ALL, place, sum(ours.values()), sum(found.values())))
    return rows


def peak_error(measured: Mapping[str, Mapping[str, Bytes]], estimate: Estimate) -> float:
    """Error of the allocated peak."""
    largest = max(sum(m["gpu"].values()) for m in measured.values())
    return estimate.gpu.allocated.expected / largest - 1


def status(rows: list[Row], peak: float) -> str:
    """``agrees`` or ``differs``."""
    return "agrees" if abs(peak) <= PEAK and all(row.agrees for row in rows) else "differs"
