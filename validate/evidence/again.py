"""A few stored rows measured once more, other ones for every commit: what differs from what is stored."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from validate.evidence.matrix import Question

ROWS = 12
CPU_SECONDS = 110.0  # of all rows together, as they were when they were stored
CHEAP_SECONDS = 15.0  # of one row


def commit() -> str:
    """The hash of the commit that is checked out; empty where there is none to be read."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def chosen(stored: Sequence[Mapping[str, Any]], seed: str) -> list[Mapping[str, Any]]:
    """Cheap rows in an order that ``seed`` decides, as many as a dozen and as the time allows."""

    def place(row: Mapping[str, Any]) -> str:
        return hashlib.sha256(f"{seed} {row['id']}".encode()).hexdigest()

    found, left = [], CPU_SECONDS
    for row in sorted((r for r in stored if r.get("cpu_seconds", CHEAP_SECONDS) < CHEAP_SECONDS), key=place):
        if len(found) < ROWS and row["cpu_seconds"] <= left:
            found.append(row)
            left -= row["cpu_seconds"]
    return found


def differences(row: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Every amount that is another one now; empty when the row is measured as it is stored."""
    if "failed" in now:
        return [f"{row['id']}: {now['failed']}"]
    found = []
    for instant in sorted({*row["instants"], *now["instants"]}):
        for place in ("gpu", "host"):
            old, new = (r["instants"].get(instant, {}).get(place, {}) for r in (row, now))
            found += [
                f"{row['id']}: {instant} {place} {category}: {old.get(category, 0):,} stored, {new.get(category, 0):,} now"
                for category in sorted({*old, *new})
                if old.get(category, 0) != new.get(category, 0)
            ]
    return found


def measured_again(rows: Sequence[Mapping[str, Any]], seconds: float = 300.0) -> list[str]:
    """Measure ``rows`` once more, each in a process of its own; what differs, in words."""
    from validate.evidence.collect import measured, prepared

    questions = [Question(r["model"], r["strategy"], r["workload"], r["cluster"]) for r in rows]
    prepared(questions)
    found: list[str] = []
    for row, question in zip(rows, questions, strict=True):
        found += differences(row, measured(question, seconds))
    return found
