"""Published throughput beside the model's: errors by class, held out by model size, against a baseline, and ranking.

    python -m validate.speed [--cases FILE] [--format table|markdown|json]

Error = predicted / measured - 1 of tokens per second and GPU, averaged inside groups of rows (one run script each),
then over groups. ``held out``: every row predicted with constants fitted without any row of its model size
(``data/speed_fits.json``, written by ``docs/evidence/time_fit.py``). Baselines: the median MFU of the other sizes' rows
with the same card and checkpointing; and, on the rows that it answered, llm-analysis (``data/llm_analysis.json``, written
by ``docs/evidence/llm_analysis_rows.py`` with its version), beside ours on the same rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median

from estimators.errors import InputError
from estimators.time import StepTime, Unknown, step_time
from estimators.time.constants import replaced
from validate.speed_cases import DATA, DENSE, ONE_GPU, SMALL, SUPPLIED, Case, read_cases
from validate.speed_ranking import Ranking, rank

ORDER = (DENSE, SMALL, ONE_GPU, "LoRA", "QLoRA", "ZeRO", "mixture of experts", "offload", "consumer cards")


@dataclass(frozen=True)
class Row:
    """One case beside its prediction, tokens per second and GPU."""

    case: Case
    low: float
    predicted: float
    high: float
    measured: float
    mfu_flops: float  # model FLOPs per token over the card's peak: MFU = this x tokens/s

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool:
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class Score:
    """Errors of one class of rows. ``width`` is the median of (high - low) / predicted."""

    name: str
    n: int
    groups: int
    mape: float
    mape_by_row: float
    bias: float
    p90: float
    worst: float
    in_band: float
    width: float


def predict(case: Case) -> Row | None:
    """A case with its prediction; None where the card has no figure."""
    time = step_time(case.run, tflops=SUPPLIED.get(case.run.cluster.gpu.id))
    measured = case.tokens_per_s
    if isinstance(time, Unknown) or measured is None:
        return None
    speed = time.tokens_per_s_per_gpu
    return Row(case, speed.low, speed.expected, speed.high, measured, _per_token(time))


def _per_token(time: StepTime) -> float:
    return time.model_flops / time.tokens / time.peak


def score(name: str, rows: Sequence[Row], errors: Sequence[float] | None = None) -> Score:
    """The errors of some rows, or of other predictions for them."""
    found = list(errors) if errors is not None else [row.error for row in rows]
    groups: dict[str, list[float]] = defaultdict(list)
    for row, error in zip(rows, found, strict=True):
        groups[row.case.group].append(error)
    sizes = sorted(abs(e) for e in found)
    return Score(
        name, len(rows), len(groups),
        mean(mean(abs(e) for e in g) for g in groups.values()), mean(sizes),
        mean(mean(g) for g in groups.values()), sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))], sizes[-1],
        mean(row.inside for row in rows), median((row.high - row.low) / row.predicted for row in rows),
    )  # fmt: skip


def held_out(cases: Iterable[Case]) -> list[Row]:
    """Rows of the fitted classes, each predicted by constants that saw no row of its size."""
    fits = json.loads((DATA / "speed_fits.json").read_text(encoding="utf-8"))
    rows: list[Row] = []
    by_size: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_size[case.size].append(case)
    for size, some in sorted(by_size.items()):
        with replaced(fits.get(size, fits["all"])):
            rows += [row for row in map(predict, some) if row]
    return rows


def baseline(rows: Sequence[Row]) -> list[float]:
    """Errors of the median MFU of rows of other sizes on the same card with the same checkpointing."""
    errors = []
    for row in rows:
        alike = [
            other.mfu_flops * other.measured
            for other in rows
            if _kind(other) == _kind(row) and other.case.size != row.case.size
        ] or [other.mfu_flops * other.measured for other in rows if other.case.size != row.case.size]
        errors.append(median(alike) / (row.mfu_flops * row.measured) - 1 if alike else 0.0)
    return errors


def other_tool(rows: Sequence[Row]) -> tuple[Score, ...]:
    """Ours held out, and llm-analysis at each of its efficiencies, on the rows of ``rows`` that it answered."""
    kept = json.loads((DATA / "llm_analysis.json").read_text(encoding="utf-8"))
    answered = kept["tokens_per_s_per_gpu"]
    some = [row for row in rows if row.case.id in answered]
    if not some:
        return ()
    name = f"{kept['tool']} {kept['version']}"
    found = [score(f"ours, on the rows that {name} answers", some)]
    for efficiency, what in kept["efficiencies"].items():
        errors = [answered[row.case.id][efficiency] / row.measured - 1 for row in some]
        found.append(score(f"{name}, efficiency {efficiency}: {what}", some, errors))
    return tuple(found)


def _kind(row: Row) -> tuple[str, bool]:
    run = row.case.run
    return run.cluster.gpu.id, run.workload.checkpointing != "none"


@dataclass(frozen=True)
class Report:
    """Everything that the command prints."""

    headline: Score
    headline_baseline: Score
    other_tool: tuple[Score, ...]  # ours first, then the other tool, on the same rows
    classes: tuple[Score, ...]
    rankings: tuple[Ranking, ...]
    worst: tuple[Row, ...]
    skipped: tuple[tuple[str, str], ...]


def report(path: str | None = None, each: Callable[[Sequence[Case]], Iterable[Case]] = iter) -> Report:
    """Scores of the package's cases, or of a file's. ``each`` hands the cases on one by one: who asks may count them."""
    skipped: list[tuple[str, str]] = []
    rows: dict[str, list[Row]] = defaultdict(list)
    for case in each(list(read_cases(path))):
        why = case.obstacle()
        row = None if why else predict(case)
        if row is None:
            skipped.append((case.id, why or "the card has no figure for its rate"))
        else:
            rows[case.kind].append(row)
    names = [*[n for n in ORDER if n in rows], *sorted(set(rows) - set(ORDER))]
    everything = [row for name in names for row in rows[name]]
    if not everything:
        why = "; ".join(sorted({f"{i}: {w}" for i, w in skipped})[:3])
        raise InputError(f"no row can be scored ({why or 'the file has no row with a speed'})")
    fitted = [row.case for name in (DENSE,) for row in rows[name]]
    seen = held_out(each(fitted)) or everything
    return Report(
        score(f"{DENSE}: held out by size", seen),
        score("its baseline: median MFU, held out by size", seen, baseline(seen)),
        other_tool(seen),
        tuple(score(name, rows[name]) for name in names),
        rank(everything),
        tuple(sorted(everything, key=lambda r: -abs(r.error))[:12]),
        tuple(skipped),
    )


def lines(found: Report, markdown: bool) -> list[str]:
    """The report as a table, for a terminal or a page."""
    head = ("class", "rows", "groups", "MAPE", "by row", "bias", "p90", "worst", "in band", "band")
    table = [_cells(s) for s in (found.headline, found.headline_baseline, *found.other_tool, *found.classes)]
    for row in (table[1], *table[3 : 2 + len(found.other_tool)]):
        row[-2:] = ["", ""]  # the others give no band
    out = _drawn(head, table, markdown)
    out += ["", *_drawn(("ranking", "pairs", "right", "share"), [
        [r.name, str(r.pairs), str(r.right), f"{r.share:.0%}" if r.pairs else ""] for r in found.rankings
    ], markdown)]  # fmt: skip
    out += ["", *_drawn(("furthest off", "group", "predicted", "measured", "error"), [
        [r.case.id, r.case.group, f"{r.predicted:,.0f}", f"{r.measured:,.0f}", f"{r.error:+.0%}"] for r in found.worst
    ], markdown)]  # fmt: skip
    reasons: dict[str, int] = defaultdict(int)
    for _, why in found.skipped:
        reasons[why] += 1
    out += ["", *_drawn(("not scored, because", "rows"), [
        [why, str(n)] for why, n in sorted(reasons.items(), key=lambda x: -x[1])
    ], markdown)]  # fmt: skip
    return out


def _cells(s: Score) -> list[str]:
    return [s.name, str(s.n), str(s.groups), *(f"{v:.1%}" for v in (s.mape, s.mape_by_row)), f"{s.bias:+.1%}",
            f"{s.p90:.1%}", f"{s.worst:.0%}", f"{s.in_band:.0%}", f"{s.width:.0%}"]  # fmt: skip


def _drawn(head: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool) -> list[str]:
    if markdown:
        return ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|",
                *("| " + " | ".join(row) + " |" for row in rows)]  # fmt: skip
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in [head, *rows]
    ]


def document(found: Report) -> dict[str, object]:
    """The report as JSON."""
    return {
        "schema": "dist-advisor/speed/1",
        "headline": asdict(found.headline),
        "baseline": asdict(found.headline_baseline),
        "other_tool": [asdict(s) for s in found.other_tool],
        "classes": [asdict(s) for s in found.classes],
        "rankings": [asdict(r) | {"share": r.share} for r in found.rankings],
        "skipped": [{"id": i, "why": why} for i, why in found.skipped],
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m validate.speed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", metavar="FILE", help="a jsonl file of measured runs; the package's own without it")
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    parsed = parser.parse_args(argv)
    try:
        found = report(parsed.cases)
    except (OSError, ValueError, KeyError) as error:
        print(f"validate.speed: {parsed.cases or 'cases'}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    if parsed.format == "json":
        print(json.dumps(document(found), indent=1))
    else:
        print("\n".join(lines(found, parsed.format == "markdown")))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
