"""Do predictions put published runs in the order in which they were measured?"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from validate.speed import Row

APART = 1.10  # pairs closer than this are not asked about


@dataclass(frozen=True)
class Ranking:
    """Pairs whose measured speeds differ by more than a tenth, and how many of them are predicted in that order."""

    name: str
    pairs: int
    right: int

    @property
    def share(self) -> float:
        return self.right / self.pairs if self.pairs else 0.0


def rank(rows: Sequence[Row]) -> tuple[Ranking, ...]:
    """Pairs that differ in strategy alone, in strategy and batching, and in any setting of one script."""
    return (
        _pairs("runs that differ only in strategy", rows, _all_but_strategy, strategies=True),
        _pairs("strategy, and how the batch is cut", rows, _all_but_batch, strategies=True),
        _pairs("any setting: same script, model and cards", rows, _same_script, strategies=False),
    )


def _pairs(name: str, rows: Sequence[Row], key: object, strategies: bool) -> Ranking:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)  # type: ignore[operator]
    asked = right = 0
    for some in groups.values():
        for a, b in combinations(some, 2):
            same = a.case.row["strategy"] == b.case.row["strategy"]
            fast, slow = max(a.measured, b.measured), min(a.measured, b.measured)
            if fast <= APART * slow or (strategies and same):
                continue
            asked += 1
            right += (a.measured > b.measured) == (a.predicted > b.predicted) and a.predicted != b.predicted
    return Ranking(name, asked, right)


def _key(row: Row, without: tuple[str, ...]) -> str:
    case = row.case.row
    load = {k: v for k, v in case["workload"].items() if k not in without}
    return json.dumps([case["group"], case["model"]["name"], case["cluster"], load], sort_keys=True)


def _all_but_strategy(row: Row) -> str:
    return _key(row, ("optimizer", "param_dtype", "state_dtype", "reduce_dtype"))


def _all_but_batch(row: Row) -> str:
    return _key(row, ("optimizer", "param_dtype", "state_dtype", "reduce_dtype", "micro_batch", "grad_accum"))


def _same_script(row: Row) -> str:
    case = row.case.row
    return json.dumps([case["group"], case["model"]["name"], case["cluster"]], sort_keys=True)
