"""Today's estimates beside the stored rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estimators.errors import AdvisorError
from estimators.memory import Estimate
from validate.compare import ALL, Row, compare, peak_error, status
from validate.evidence.matrix import Question


@dataclass(frozen=True)
class Score:
    """One stored row and what the estimators say of it now."""

    id: str
    measured: int
    peak: float
    status: str
    rows: tuple[Row, ...]

    @property
    def instants(self) -> dict[str, float]:
        """Error of each instant's bytes on the GPU."""
        return {row.instant: row.error for row in self.rows if row.category == ALL and row.place == "gpu"}


def score(stored: list[Mapping[str, Any]]) -> tuple[list[Score], dict[str, str]]:
    """A score for each measured row; the reason for each that the estimators do not answer."""
    found: list[Score] = []
    left_out: dict[str, str] = {}
    for row in stored:
        if "failed" in row:
            left_out[row["id"]] = f"not simulated: {row['failed']}"
            continue
        question = Question(row["model"], row["strategy"], row["workload"], row["cluster"])
        try:
            estimate = Estimate(question.predicted())
            rows = compare(row["instants"], estimate)
            peak = peak_error(row["instants"], estimate)
        except AdvisorError as reason:
            left_out[row["id"]] = f"not estimated: {reason}"
            continue
        found.append(Score(row["id"], row["allocated"], peak, status(rows, peak), tuple(rows)))
    return found, left_out
