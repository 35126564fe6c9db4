"""Measured beside predicted, instant by instant and category by category, with the verdict of each.

``agrees`` means 0 bytes off for what is persistent, 1 % or 64 KiB (2 MiB on a GPU) for every other category, and the
peak within 3 % (5 % on a GPU).
Where activations end and logits begin is a matter of view (the final norm, the input of the head): the two are judged
by their sum. The total of an instant is a row of its own, ``all``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from estimators.devices import DEVICES
from estimators.memory import Estimate
from estimators.result import CATEGORIES, INSTANTS

PERSISTENT = ("params", "gradients", "master", "optimizer", "buffers")
PERSISTENT_AT = ("step",)  # where nothing is gathered, in flight or half reduced
NETWORK = ("activations", "logits")
ALL = "all"

Bytes = Mapping[str, int]


@dataclass(frozen=True)
class Tolerance:
    """How far a category (a share, or bytes where that is more) and the peak (a share) may be off."""

    relative: float
    absolute_bytes: int
    peak: float


ON_CPU = Tolerance(0.01, 64 * 2**10, 0.03)  # and in a simulation
ON_GPU = Tolerance(0.01, 2 * 2**20, 0.05)


@dataclass(frozen=True)
class Row:
    """One number: bytes predicted and measured of a category at an instant, in one place."""

    instant: str
    category: str
    place: str
    predicted: int
    measured: int
    judged: tuple[int, int] | None = None  # predicted and measured that decide, where they are not the row's own
    tolerance: Tolerance = ON_CPU

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
        return off <= max(self.tolerance.absolute_bytes, self.tolerance.relative * measured)


def compare(
    measured: Mapping[str, Mapping[str, Bytes]], estimate: Estimate, tolerance: Tolerance = ON_CPU
) -> list[Row]:
    """Rows of every instant that was measured. ``measured``: instant -> place -> category -> bytes of one rank.

    What an estimate says of a node's host RAM is shared out over its ranks; where device and host are one (a CPU), it
    stands with the device's.
    """
    ranks = estimate.run.cluster.gpus_per_node
    apart = DEVICES[estimate.run.settings.device].separate_host
    rows: list[Row] = []
    for name in (i for i in INSTANTS if i in measured):
        for place, share in (("gpu", 1), ("host", ranks)):
            if place == "host" and (name == "load" or not apart):
                continue  # copies of a checkpoint, of which there is none; or the host is the device
            found = Counter(measured[name].get(place, {}))
            ours = Counter({c: size // share for c, size in estimate[name].by_category(place).items()})
            if not apart:
                found.update(measured[name].get("host", {}))
            if not apart and name != "load":
                ours.update({c: size // ranks for c, size in estimate[name].by_category("host").items()})
            both = [c for c in CATEGORIES if c in ours or c in found]
            network = (sum(ours.get(c, 0) for c in NETWORK), sum(found.get(c, 0) for c in NETWORK))
            rows.extend(
                Row(name, c, place, ours[c], found[c], network if c in NETWORK else None, tolerance) for c in both
            )
            if both:
                rows.append(Row(name, ALL, place, sum(ours.values()), sum(found.values()), None, tolerance))
    return rows


def peak_error(measured: Mapping[str, Mapping[str, Bytes]], estimate: Estimate) -> float:
    """Error of the largest sum on the device, ``save`` apart."""
    totals = [row for row in compare(measured, estimate) if row.place == "gpu" and row.category == ALL]
    predicted, found = (max(getattr(row, name) for row in totals) for name in ("predicted", "measured"))
    return predicted / found - 1


def status(rows: list[Row], peak: float, tolerance: Tolerance = ON_CPU) -> str:
    """``agrees`` or ``differs``."""
    return "agrees" if abs(peak) <= tolerance.peak and all(row.agrees for row in rows) else "differs"
