"""``python -m validate.evidence``: measure what is missing, or score what is stored."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import mean
from typing import Any

from validate.evidence.matrix import questions
from validate.evidence.score import Score, score
from validate.evidence.store import rows
from validate.evidence.summary import summary

INSTANTS = ("load", "forward", "loss", "backward", "reduce", "step")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything that was asked for was done; scores are printed, not judged."""
    parser = argparse.ArgumentParser(prog="python -m validate.evidence", description=__doc__)
    parser.add_argument("--score", action="store_true", help="set today's estimates beside the stored rows")
    parser.add_argument("--summary", action="store_true", help="as --score, in few lines")
    parser.add_argument("--details", metavar="PIECE", help="with --score: every category of rows whose id has PIECE")
    parser.add_argument("--only", action="append", default=[], metavar="PIECE", help="questions whose id has PIECE")
    parser.add_argument("--again", action="store_true", help="measure what is stored once more")
    parser.add_argument("--check", action="store_true", help="measure a dozen cheap rows again, chosen by the commit")
    parser.add_argument("--list", action="store_true", help="print the ids and stop")
    parser.add_argument("--seconds", type=float, default=1800.0, help="limit of one question")
    asked = parser.parse_args(arguments)
    if asked.summary:
        print("\n".join(summary(score(_stored(asked.only))[0])))
        return 0
    if asked.score:
        return _score(asked.only, asked.details)
    if asked.check:
        return _check(asked.only)
    wanted = [q for q in questions() if all(piece in q.id for piece in asked.only)]
    if asked.list:
        print("\n".join(question.id for question in wanted))
        return 0
    from validate.evidence.collect import collect

    collect(wanted, asked.seconds, asked.again)
    return 0


def _stored(only: Sequence[str]) -> list[dict[str, Any]]:
    """Rows whose id has every piece."""
    return [row for row in rows() if all(piece in row["id"] for piece in only)]


def _check(only: Sequence[str]) -> int:
    from validate.evidence.again import chosen, commit, measured_again

    picked = chosen(_stored(only), commit())
    found = measured_again(picked)
    print("\n".join(found or [f"{len(picked)} rows as they are stored: {', '.join(row['id'] for row in picked)}"]))
    return 1 if found else 0


def _score(only: Sequence[str], details: str | None) -> int:
    started = time.monotonic()
    found, left_out = score(_stored(only))
    print(f"{'error of the peak and of each instant':<60} {'peak':>8} " + " ".join(f"{i:>8}" for i in INSTANTS))
    for one in found:
        errors = " ".join(f"{one.instants.get(i, float('nan')):>8.2%}" for i in INSTANTS)
        print(f"{one.id:<60} {one.peak:>8.2%} {errors} {one.status}")
        if details and details in one.id:
            _details(one)
    for name, reason in left_out.items():
        print(f"{name}: {reason}", file=sys.stderr)
    if found:
        errors = sorted(abs(one.peak) for one in found)
        agree = sum(one.status == "agrees" for one in found)
        bias = mean(one.peak for one in found)
        print(
            f"{len(found)} rows, {agree} agree; peak: mape {mean(errors):.2%}, bias {bias:+.2%}, "
            f"worst {errors[-1]:.2%}; {time.monotonic() - started:.1f} s"
        )
    return 0


def _details(one: Score) -> None:
    for row in one.rows:
        mark = "" if row.agrees else "  <-"
        print(
            f"    {row.instant:<9}{row.place:<5}{row.category:<12}{row.predicted:>17,}{row.measured:>17,}"
            f"{row.predicted - row.measured:>17,}{mark}"
        )


if __name__ == "__main__":
    sys.exit(main())
