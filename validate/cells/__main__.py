"""``python -m validate.cells``: run the cells and print predicted against measured bytes."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence

from validate.cells import Cell, Row, cells_of, compare, measure, prepare
from validate.cells.ranks import Failure

ENGINES = ("torch", "ddp", "fsdp1", "fsdp2", "deepspeed")
HEADS = ("cell", "strategy", "ranks", "instant", "category", "predicted", "measured", "difference")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every cell ran; differences are printed, not judged (the tests judge them)."""
    parser = argparse.ArgumentParser(prog="python -m validate.cells", description=__doc__)
    parser.add_argument("--engine", action="append", choices=ENGINES, default=[], help="only these engines")
    parser.add_argument("--cell", action="append", default=[], help="only cells whose id begins so")
    parser.add_argument("--nvme", action="store_true",
                        help="the cells that swap to a disk: needs libaio, and compiles for minutes once")  # fmt: skip
    parser.add_argument("--format", choices=("table", "markdown", "summary", "json"), default="table")
    asked = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    rows: list[tuple[Cell, Row]] = []
    failures: dict[str, str] = {}
    for cells, job in cells_of(asked.engine, asked.nvme):
        chosen = [c for c in cells if not asked.cell or c.id.startswith(tuple(asked.cell))]
        prepare(chosen)
        outcomes = measure(chosen, job)
        for cell in chosen:
            outcome = outcomes[cell.id]
            if isinstance(outcome, Failure):
                failures[cell.id] = outcome.reason
            else:
                rows.extend((cell, row) for row in compare(cell, outcome))
    {"table": _table, "markdown": _markdown, "summary": _summary, "json": _json}[asked.format](rows)
    for name, reason in failures.items():
        print(f"{name} did not run: {reason}", file=sys.stderr)
    return 1 if failures else 0


def _values(cell: Cell, row: Row) -> tuple[str, ...]:
    numbers = (f"{n:,}" for n in (row.predicted, row.measured, row.difference))
    return (cell.id, cell.parsed.name, str(cell.ranks), row.instant, row.category, *numbers)


def _table(rows: list[tuple[Cell, Row]]) -> None:
    lines = [HEADS, *(_values(*pair) for pair in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]
    for line in lines:
        left = (text.ljust(width) for text, width in zip(line[:5], widths, strict=False))
        right = (text.rjust(width) for text, width in zip(line[5:], widths[5:], strict=True))
        print("  ".join((*left, *right)).rstrip())


def _markdown(rows: list[tuple[Cell, Row]]) -> None:
    print(f"| {' | '.join(HEADS)} |\n|{'---|' * 5}{'---:|' * 3}")
    for pair in rows:
        print(f"| {' | '.join(_values(*pair))} |")


def _summary(rows: list[tuple[Cell, Row]]) -> None:
    """A line a cell: how many amounts were compared, and the one that differs most."""
    print("| cell | strategy | ranks | amounts | largest difference |\n|---|---|---:|---:|---|")
    for cell in {cell.id: cell for cell, _ in rows}.values():
        found = [row for other, row in rows if other is cell]
        worst = max(found, key=lambda row: abs(row.difference))
        says = (
            f"{worst.difference:+,} B of {worst.measured:,} ({worst.instant}, {worst.category})"
            if worst.difference
            else "0 B"
        )
        print(f"| {cell.id} | {cell.parsed.name} | {cell.ranks} | {len(found)} | {says} |")


def _json(rows: list[tuple[Cell, Row]]) -> None:
    print(json.dumps([
        {"cell": c.id, "strategy": c.parsed.name, "ranks": c.ranks, "workload": dict(c.workload), "instant": r.instant,
         "category": r.category, "predicted": r.predicted, "measured": r.measured, "difference": r.difference}
        for c, r in rows
    ], indent=1))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
