"""``dist-advisor models [PATTERN]``: the catalogue, with sources."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from selector.cli.output import check_format, emit

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLE = """examples:
  dist-advisor models
  dist-advisor models qwen --format csv"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    command.add_argument(
        "pattern", nargs="?", metavar="PATTERN", help="only names, aliases or families that contain it"
    )


def run(parsed: argparse.Namespace) -> int:
    check_format(parsed)
    from estimators.errors import UnknownName
    from estimators.model.catalogue import models

    wanted = (parsed.pattern or "").lower()
    every = models()
    words = ("name", "family", "hf_id")
    found = [m for m in every if wanted in " ".join((*(str(m[w]) for w in words), *m["aliases"])).lower()]
    if not found:
        raise UnknownName("model", parsed.pattern, [m["name"] for m in every], "(dist-advisor models lists them)")
    rows: list[dict[str, Any]] = [
        {"model": m["name"], **{k: v for k, v in m.items() if k != "name"}, "aliases": " ".join(m["aliases"])}
        for m in found
    ]
    emit(parsed, {"schema": "dist-advisor/models/1", "rows": rows}, rows, lambda c: draw(c, rows))
    return 0


def draw(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("model", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("family", no_wrap=True)
    table.add_column("aliases", overflow="fold")
    if console.width >= 120:
        table.add_column("configuration from", overflow="fold", style="dim")
    for row in rows:
        cells = [row["model"], f"{row['params']:,}", row["family"], row["aliases"]]
        table.add_row(*cells, *([row["source"]] if console.width >= 120 else []))
    console.print(table)
