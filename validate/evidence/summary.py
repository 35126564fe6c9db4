"""Scores of many rows in few lines: by model, by strategy, by method and checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import mean

from validate.compare import Row
from validate.evidence.score import Score

SHARE = 0.02  # of what a category holds
SMALL_BYTES = 64 * 2**10


def within(score: Score) -> bool:
    """Whether every category of every instant is within 2 % (or 64 KiB)."""
    return all(_off(row) <= SHARE for row in score.rows)


def _off(row: Row) -> float:
    predicted, measured = row.judged or (row.predicted, row.measured)
    return 0.0 if abs(predicted - measured) <= SMALL_BYTES else abs(predicted - measured) / max(measured, 1)


def summary(found: Sequence[Score]) -> Iterator[str]:
    """``rows``, how many agree and are within 2 %, errors of the peak, and of the worst instant."""
    parts = {score: score.id.split("/") for score in found}
    keys: tuple[tuple[str, Callable[[Score], str]], ...] = (
        ("model", lambda s: parts[s][0]),
        ("strategy", lambda s: parts[s][2]),
        ("method, checkpointing", lambda s: f"{parts[s][3]}, {parts[s][4]}"),
        ("all", lambda s: "all"),
    )
    for title, key in keys:
        yield f"{title:<34}{'rows':>5}{'agree':>7}{'in 2 %':>8}{'mape':>8}{'worst':>9}{'instant':>10}{'worst':>9}"
        for name in dict.fromkeys(map(key, found)):
            yield _line(name, [score for score in found if key(score) == name])


def _line(name: str, scores: Sequence[Score]) -> str:
    peaks = [score.peak for score in scores]
    instants = [(error, at) for score in scores for at, error in score.instants.items()]
    worst, at = max(instants, key=lambda pair: abs(pair[0]))
    return (
        f"{name:<34}{len(scores):>5}{sum(s.status == 'agrees' for s in scores):>7}{sum(map(within, scores)):>8}"
        f"{mean(map(abs, peaks)):>8.2%}{max(peaks, key=abs):>+9.2%}{at:>10}{worst:>+9.2%}"
    )
