"""``dist-advisor models [PATTERN]``: the catalogue, with sources."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from selector.cli.output import check_format, emit

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLE = """examples:
  dist-advisor models
  dist-advisor models qwen --format csv
  dist-advisor models --ledgers     # whose activations are described, and how"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    command.add_argument(
        "pattern", nargs="?", metavar="PATTERN", help="only names, aliases or families that contain it"
    )
    command.add_argument(
        "--ledgers", action="store_true", help="for each model: blocks, attention kernels and root whose activations are "
        "described, and what that was compared with",
    )  # fmt: skip


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
    if parsed.ledgers:
        rows = [_ledger(row) for row in rows]
    shown = draw_ledgers if parsed.ledgers else draw
    emit(parsed, {"schema": "dist-advisor/models/1", "rows": rows}, rows, lambda c: shown(c, rows))
    return 0


def _ledger(row: dict[str, Any]) -> dict[str, Any]:
    from estimators.activations.listing import ledger_of
    from estimators.model.resolve import resolve_model

    found = ledger_of(resolve_model(str(row["model"])))
    return {
        "model": row["model"], "family": row["family"], "blocks": " ".join(found.blocks),
        "attention": " ".join(found.kernels), "root": found.root, "after": found.basis, "missing": found.missing,
    }  # fmt: skip


def draw_ledgers(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    columns = ("model", "family", "attention", "root", "after")
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(row[name] or "-" for name in columns))
    console.print(table)
    for missing in sorted({row["missing"] for row in rows if row["missing"]}):
        console.print(f"not described: {missing}", style="dim")


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
