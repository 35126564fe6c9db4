"""``dist-advisor gpus [PATTERN]``: the catalogue of cards, with the source of each figure."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from selector.cli.output import check_format, emit

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLE = """examples:
  dist-advisor gpus
  dist-advisor gpus a100 --format json"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    command.add_argument("pattern", nargs="?", metavar="PATTERN", help="only cards whose name contains it")


def run(parsed: argparse.Namespace) -> int:
    check_format(parsed)
    from estimators.cluster import gpu_rows
    from estimators.errors import UnknownName

    wanted = (parsed.pattern or "").lower()
    every = gpu_rows()
    rows = [row for row in every if wanted in " ".join((row["gpu"], row["torch_names"])).lower()]
    if not rows:
        raise UnknownName("GPU", parsed.pattern, [row["gpu"] for row in every], "(dist-advisor gpus lists them)")
    emit(parsed, {"schema": "dist-advisor/gpus/1", "rows": rows}, rows, lambda c: draw(c, rows))
    return 0


def draw(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("gpu", no_wrap=True)
    for title in ("reports GiB", "bf16 TFLOPS", "GB/s", "link GB/s"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("bf16")
    table.add_column("torch calls it", overflow="fold", style="dim")
    for row in rows:
        table.add_row(
            row["gpu"], *(number(row[k]) for k in ("memory_gib", "bf16_tflops", "memory_gb_per_s", "link_gb_per_s")),
            "yes" if row["bf16"] else "no", row["torch_names"],
        )  # fmt: skip
    console.print(table)


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}".rstrip("0").rstrip(".")
