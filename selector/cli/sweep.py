"""``dist-advisor sweep FILE``: many models x clusters x workloads from YAML or CSV to one table."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from selector.cli.output import check_format, emit, picture
from selector.cli.parser import add_plot_flag

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

EXAMPLE = """examples:
  dist-advisor sweep sweep.yaml --format csv --out sweep.csv
  dist-advisor sweep questions.csv --format json

sweep.yaml, multiplied out:
  models: [llama-8b, qwen2.5-7b]
  gpus: [4xA10, 8xA100-80GB, 2x8xH100]
  strategies: [zero3, fsdp]  # left out: the first that fits
  workload:
    seq_len: [2048, 8192]
    checkpointing: full

questions.csv, a question a line: columns model, gpus, strategy, and any
workload field.
An interrupted sweep goes on when the same command is given again."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    command.add_argument("file", metavar="FILE", help="YAML or CSV")
    add_plot_flag(command, "the combinations beside what their cards have")
    command.add_argument("--processes", metavar="N", help="processes (as many as there are cores)")
    command.add_argument("--partial", metavar="FILE", help="where rows are kept meanwhile (FILE.partial)")


def run(parsed: argparse.Namespace) -> int:
    check_format(parsed)
    from estimators.workload import whole_number
    from selector.sweep import Partial, check, compute
    from selector.sweep_file import read_sweep

    processes = whole_number("processes", parsed.processes, 1024) if parsed.processes else os.cpu_count() or 1
    combinations, digest = read_sweep(parsed.file)
    check(combinations)
    with Partial(parsed.partial or f"{parsed.file}.partial", digest, len(combinations)) as partial:
        resumed = len(partial.done)
        for done in compute(combinations, partial, processes):
            progress(parsed, done, len(combinations))
    rows = with_all_columns([partial.done[i] for i in range(len(combinations))])
    notes = [f"{resumed} of {len(combinations)} rows were kept from an interrupted run"] if resumed else []
    failed = sum(1 for r in rows if r["error"])
    if failed:
        notes.append(f"{failed} of {len(rows)} combinations could not be answered: see column error")
    emit(parsed, {"schema": "dist-advisor/sweep/1", "rows": rows}, rows, lambda c: draw(c, rows), notes)
    picture(parsed, lambda: draw_picture(rows))
    partial.remove()
    return 0


def draw_picture(rows: list[dict[str, Any]]) -> Figure:
    from selector.plots import combinations

    return combinations(rows)


def with_all_columns(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every row with every column, those of the question first."""
    last = ["strategy", "verdict", "gpu_process_bytes", "gpu_capacity_bytes", "host_bytes_per_node",
            "nvme_bytes_per_node", "peak_instant", "tokens_per_s_per_gpu", "error"]  # fmt: skip
    first = dict.fromkeys(name for row in rows for name in row if name not in last)
    return [{name: row.get(name) for name in (*first, *last)} for row in rows]


def progress(parsed: argparse.Namespace, done: int, total: int) -> None:
    """A bar on stderr, where that is a terminal and nobody asked for quiet."""
    if parsed.quiet or not sys.stderr.isatty():
        return
    width = 30
    full = round(width * done / total)
    end = "\n" if done == total else ""
    sys.stderr.write(f"\r{'█' * full}{'·' * (width - full)} {done:,} of {total:,}{end}")
    sys.stderr.flush()


def draw(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    hidden = ("gpu_capacity_bytes", "nvme_bytes_per_node", "error")
    columns = [name for name in rows[0] if name not in hidden and any(r[name] is not None for r in rows)]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in columns:
        title = name.removesuffix("_bytes").removesuffix("_bytes_per_node").replace("_", " ")
        table.add_column(
            title + (" GiB" if "bytes" in name else ""),
            justify="right" if "bytes" in name or "tokens" in name else "left",
        )
    for row in rows:
        cells = []
        for name in columns:
            value = row[name]
            cells.append(shown(row, name, value))
        table.add_row(*cells)
    console.print(table)


def shown(row: dict[str, Any], name: str, value: Any) -> str:
    """A cell: GiB, whole tokens, and no speed for what does not run."""
    from estimators.units import gib

    if value is None or (name == "tokens_per_s_per_gpu" and row["verdict"] == "no"):
        return ""
    if "bytes" in name:
        return gib(value, 1)
    return f"{value:,.0f}" if name == "tokens_per_s_per_gpu" else str(value)
