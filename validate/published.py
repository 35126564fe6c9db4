"""Published memory beside the estimates: errors by quantity, method, strategy and stack; verdicts; naive baselines.

    python -m validate.published [--cases FILE] [--format table|markdown|json] [--write]

Error = predicted / measured - 1; mape and bias are averaged inside groups of rows (one run script each), then over
groups; p90 and worst are over rows. ``tight`` counts as ran; a failure is recognised only by ``no``. Only rows of
quality A and B count. ``--write`` puts the 90 % errors by engine, method and stack where the advisor reads its trust.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import estimators
from estimators.errors import InputError
from estimators.units import GIB
from validate.naive import BASELINES
from validate.published_cases import QUANTITIES, MemoryCase, read
from validate.published_print import PRINTERS

TRUST = Path(estimators.__file__).parent / "data" / "accuracy.json"
COMMAND = "python -m validate.published --write"
DIMENSIONS: dict[str, Callable[[MemoryCase], str]] = {
    "method": lambda c: c.run.workload.method,
    "strategy": lambda c: c.run.strategy.name.partition(":")[0],
    "stack": lambda c: c.run.workload.stack,
}


@dataclass(frozen=True)
class Row:
    """One quantity of one case in GiB."""

    case: MemoryCase
    quantity: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Report:
    """All that is printed."""

    cases: int
    answered: tuple[MemoryCase, ...]
    skipped: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]

    def of(self, quantity: str) -> list[Row]:
        return [r for r in self.rows if r.quantity == quantity]


def score(rows: Sequence[Row], predict: Callable[[Row], float] | None = None) -> dict[str, Any]:
    """n, groups, mape, bias, p90 and worst; ``predict`` puts another estimate in the place of ours."""
    errors: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        errors[row.case.group].append(predict(row) / row.measured - 1 if predict else row.error)
    if not errors:
        return {"n": 0, "groups": 0, "mape": None, "bias": None, "p90": None, "worst": None}
    every = [e for some in errors.values() for e in some]
    return {
        "n": len(every),
        "groups": len(errors),
        "mape": mean(mean(abs(e) for e in some) for some in errors.values()),
        "bias": mean(mean(some) for some in errors.values()),
        "p90": quantile([abs(e) for e in every], 0.9),
        "worst": max(every, key=abs),
    }


def quantile(values: Iterable[float], share: float) -> float:
    """The value that ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def verdicts(cases: Iterable[MemoryCase], judge: Callable[[MemoryCase], str] | None = None) -> dict[str, int]:
    """Failures recognised, runs refused, and what is tight."""
    found: Counter[str] = Counter()
    for case in cases:
        if case.oom is None:
            continue
        verdict = judge(case) if judge else case.estimate.verdict
        found["failures" if case.oom else "runs"] += 1
        found["tight"] += verdict == "tight"
        found["unknown"] += verdict == "unknown"
        found["failures recognised" if case.oom else "runs refused"] += verdict == "no"
    keys = ("failures", "failures recognised", "runs", "runs refused", "tight", "unknown")
    return {key: found[key] for key in keys}


def evaluate(cases: Iterable[MemoryCase]) -> Report:
    """Every case of quality A and B that can be answered, and why the others cannot."""
    answered, skipped, rows, number = [], [], [], 0
    for case in cases:
        number += 1
        why = case.obstacle() if case.counts else "quality C: several settings unknown"
        if why:
            skipped.append((case.id, why))
            continue
        answered.append(case)
        gpu = case.estimate.gpu
        rows += [Row(case, q, getattr(gpu, q).expected / GIB, m) for q, m in case.measured.items()]
    return Report(number, tuple(answered), tuple(skipped), tuple(rows))


def as_json(report: Report) -> dict[str, Any]:
    """``dist-advisor/accuracy/1``."""
    judged = verdicts(report.answered)
    right = judged["failures recognised"] + judged["runs"] - judged["runs refused"]
    baselines = {name: _baseline(report, estimate) for name, estimate in BASELINES.items()}
    return {
        "schema": "dist-advisor/accuracy/1",
        "groups": len({c.group for c in report.answered}),
        "cases": report.cases,
        "scored": len(report.answered),
        "skipped": [{"id": i, "why": why} for i, why in report.skipped],
        "by_quantity": {**{q: score(report.of(q)) for q in QUANTITIES}, "tokens_per_s": score(())},
        "by": {name: _split(report, key) for name, key in DIMENSIONS.items()},
        "verdicts": {"right": right, "wrong": judged["failures"] + judged["runs"] - right, **judged},
        "baselines": baselines,
        "rows": [
            {"id": r.case.id, "group": r.case.group, "quantity": r.quantity, "predicted": r.predicted,
             "measured": r.measured, "error": r.error} for r in report.rows
        ],
    }  # fmt: skip


def _split(report: Report, key: Callable[[MemoryCase], str]) -> dict[str, dict[str, Any]]:
    values = sorted({key(r.case) for r in report.rows})
    return {v: {q: score([r for r in report.of(q) if key(r.case) == v]) for q in QUANTITIES} for v in values}


def _baseline(report: Report, estimate: Callable[[Any], float]) -> dict[str, Any]:
    """Any measured quantity against the same figure; a run fails where the figure exceeds the card."""

    def judge(case: MemoryCase) -> str:
        return "no" if estimate(case.run) * GIB > case.estimate.gpu.capacity else "fits"

    allocated = score(report.of("allocated"), lambda r: estimate(r.case.run))
    every = score(report.rows, lambda r: estimate(r.case.run))
    return {"allocated": allocated, "all": every, "verdicts": verdicts(report.answered, judge)}


def trust_rows(report: Report) -> list[dict[str, Any]]:
    """90 % errors of allocated memory (process, then reserved, where a row has none), coarse to fine."""
    first: dict[str, Row] = {}
    for quantity in ("allocated", "process", "reserved"):
        for row in report.of(quantity):
            first.setdefault(row.case.id, row)
    cells: dict[tuple[str, str | None, str | None], list[float]] = defaultdict(list)
    for row in first.values():
        work, engine = row.case.run.workload, row.case.run.strategy.engine
        for key in ((engine, None, None), (engine, work.method, None), (engine, work.method, work.stack)):
            cells[key].append(abs(row.error))
    return [
        {"engine": e, "method": m, "stack": s, "n": len(errors), "p90": round(quantile(errors, 0.9), 3)}
        for (e, m, s), errors in sorted(cells.items(), key=str)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m validate.published", description=about)
    parser.add_argument("--cases", metavar="FILE", help="a file like memory_cases.jsonl; default: the package's own")
    parser.add_argument("--format", choices=(*PRINTERS, "json"), default="table")
    parser.add_argument("--write", action="store_true", help=f"write {TRUST.name}, which the advisor reads")
    options = parser.parse_args(arguments)
    try:
        report = evaluate(read(options.cases))
    except (OSError, InputError, json.JSONDecodeError) as error:
        print(f"validate.published: {error}", file=sys.stderr)
        return 2
    if options.write:
        content = {"source": COMMAND, "rows": trust_rows(report)}
        TRUST.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    found = as_json(report)
    print(json.dumps(found, indent=1) if options.format == "json" else PRINTERS[options.format](found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
