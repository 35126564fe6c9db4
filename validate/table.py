"""A report in the terminal: a line a category of the peak instant, a line an instant of the rest; legible at 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from estimators.units import gib
from validate.compare import ALL, Row

if TYPE_CHECKING:
    from rich.console import Console

    from validate.report import Report

# How far a run has come when a phase begins: share of a step
PHASES = ("join", "build", "start", "forward", "loss", "backward", "step", "between", "end")


def draw(console: Console, report: Report, every: bool = False) -> None:
    """Head, table, and what a reader must know. ``every``: each category of each instant."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(headline(report)))
    if report.rows:
        table = Table(box=None, padding=(0, 1), show_edge=False, header_style="bold")
        table.add_column("instant")
        table.add_column("category", no_wrap=True)
        for name in ("predicted", "measured", "difference"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("")
        peak = max((r for r in report.rows if r.category == ALL and r.place == "gpu"), key=lambda r: r.measured).instant
        last = ""
        for row in _shown(report.rows, peak, every):
            where = "" if row.place == "gpu" else " (host)"
            table.add_row(
                row.instant if row.instant != last else "", row.category + where, f"{row.predicted:,}",
                f"{row.measured:,}", f"{row.predicted - row.measured:+,}" if row.predicted != row.measured else "0",
                Text("" if row.agrees else "differs", style="yellow"),
                style="bold" if row.category == ALL else "",
            )  # fmt: skip
            last = row.instant
        console.print(table)
    for line in closing(report):
        console.print(Text(line))


def draw_checks(console: Console, rows: list[dict[str, Any]]) -> None:
    """A line an engine: status, error of the peak, what differs."""
    from rich.table import Table

    console.print(f"mode {rows[0]['mode']} on {rows[0]['device']}, {rows[0]['ranks']} ranks")
    table = Table(box=None, padding=(0, 1), show_edge=False, header_style="bold")
    for name in ("engine", "status", "peak"):
        table.add_column(name, no_wrap=True)
    table.add_column("what differs")
    for row in rows:
        error = "" if row["error"] is None else f"{row['error']:+.2%}"
        table.add_row(row["engine"], row["status"], error, row["reason"] or ", ".join(row["differs"]))
    console.print(table)


def _shown(rows: tuple[Row, ...], peak: str, every: bool) -> Iterator[Row]:
    """Everything at the peak and at the steady state; elsewhere totals, and what differs."""
    for row in rows:
        if every or row.instant in (peak, "step") or row.category == ALL or not row.agrees:
            yield row


def headline(report: Report) -> str:
    run = report.estimate.run
    scaled = ", ".join(f"{name} {a} -> {b}" for name, (a, b) in report.scaled.items())
    where = {"fake": "fake tensors", "cpu": "this CPU", "cuda": "GPU"}[report.device]
    return (
        f"{run.model.name}, {report.strategy}, {run.workload.precision}, {run.workload.micro_batch} x "
        f"{run.workload.seq_len} tokens: {report.mode} on {where}, {report.ranks} ranks"
        + (f", scaled: {scaled}" if scaled else "")
    )


def closing(report: Report) -> list[str]:
    """Verdict, speed, notes."""
    lines = []
    if report.failure is not None:
        lines.append(f"failed: {report.failure}")
        lines.extend(f"  {line}" for line in report.failure.detail.splitlines()[-6:])
    else:
        error = f"peak predicted {report.error:+.2%}" if report.error is not None else ""
        lines.append(f"{report.status}: {error}. Bytes of the rank that needs most.")
    if report.step_seconds:
        lines.append(f"{report.step_seconds:.3f} s a step, {report.tokens_per_s:,.0f} tokens/s of one GPU")
    reserved = [int(c["reserved_bytes"]) for c in report.counters.values() if c.get("reserved_bytes")]
    if reserved:
        process = f", process {gib(report.process_bytes)} GiB" if report.process_bytes else ""
        lines.append(f"reserved {gib(max(reserved))} GiB{process}")
    return lines


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[int, str], Any]]:
    """A bar on stderr while ranks run: nothing where stderr is no terminal."""
    import sys

    if quiet or not sys.stderr.isatty():
        yield lambda task, phase: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task("starting", total=None)
        count = 0

        def told(task: int, phase: str) -> None:
            nonlocal count
            count += 1
            bar.update(shown, description=phase or "starting", total=None, completed=count)

        yield told
