"""``dist-advisor strategies [NAME]``: the strategies, or one with its options."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from selector.cli.output import check_format, emit

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLE = """examples:
  dist-advisor strategies
  dist-advisor strategies zero3"""

WIDE = 120  # columns from which everything stands in one table

MEANINGS = {
    "single": "one GPU, no engine",
    "ddp": "DistributedDataParallel: everything replicated, gradients all-reduced",
    "zero0": "DeepSpeed without ZeRO: replicated 16-bit parameters and fp32 master",
    "zero1": "DeepSpeed: optimizer states and master weights sharded",
    "zero2": "DeepSpeed: gradients sharded too",
    "zero3": "DeepSpeed: parameters sharded too",
    "fsdp-full-shard": "FSDP2 (fully_shard): everything sharded, gathered unit by unit",
    "fsdp-shard-grad-op": "FSDP2: parameters stay gathered from forward to the end of backward",
    "fsdp-hybrid-shard": "FSDP2: sharded inside a group of GPUs, replicated between groups",
    "fsdp1-full-shard": "FSDP1 (FullyShardedDataParallel): as full shard, in flat parameters",
    "fsdp1-shard-grad-op": "FSDP1: parameters stay gathered from forward to the end of backward",
    "fsdp1-hybrid-shard": "FSDP1: sharded inside a group, replicated between groups",
    "fsdp1-no-shard": "FSDP1 with NO_SHARD: replicated, like DDP",
}


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    command.add_argument("name", nargs="?", metavar="NAME", help="one strategy: its options")


def run(parsed: argparse.Namespace) -> int:
    check_format(parsed)
    rows = options_of(parsed.name) if parsed.name else names()
    columns = list(rows[0])
    emit(parsed, {"schema": "dist-advisor/strategies/1", "rows": rows}, rows, lambda c: draw(c, columns, rows))
    return 0


def names() -> list[dict[str, Any]]:
    """Every base name with the offload combinations that are legal."""
    from estimators.errors import IllegalCombination
    from estimators.strategy import ALIASES, ENGINES, parse_strategy

    rows = []
    for base, engine in ENGINES.items():
        legal = []
        for suffix in offloads():
            try:
                legal.append(parse_strategy(base + suffix).name.removeprefix(base))
            except IllegalCombination:
                continue
        aliases = [alias for alias, name in ALIASES.items() if parse_strategy(name).base == base]
        rows.append({"strategy": base, "engine": engine, "what": MEANINGS[base], "offload": " ".join(filter(None, legal)),
                     "aliases": " ".join(aliases)})  # fmt: skip
    return rows


def offloads() -> list[str]:
    places = ("", "cpu", "nvme")
    return [
        (f"+optimizer@{o}" if o else "") + (f"+params@{p}" if p else "") for o in places for p in places
    ]  # fmt: skip


def options_of(name: str) -> list[dict[str, Any]]:
    """The knobs of a strategy with default, key in the engine's own configuration, versions and effect."""
    from estimators.strategy import knobs_of, parse_strategy

    base = parse_strategy(name).base
    rows = []
    for knob in knobs_of(base):
        kind = "|".join(knob.kind) if isinstance(knob.kind, tuple) else knob.kind
        gate = " ".join(
            filter(None, (f"since {knob.since}" if knob.since else "", f"gone in {knob.until}" if knob.until else ""))
        )
        default = "by stack" if knob.default is None else str(knob.default).lower()
        rows.append(
            {
                "option": knob.name,
                "values": kind,
                "default": default,
                "key": knob.key,
                "versions": gate,
                "effect": knob.effect,
            }
        )
    return rows or [
        {"option": "none", "values": "", "default": "", "key": "", "versions": "", "effect": f"{base} takes no options"}
    ]


def draw(console: Console, columns: list[str], rows: list[dict[str, Any]]) -> None:
    if console.width < WIDE:
        return draw_narrow(console, columns, rows)
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index == 0, overflow="fold")
    for row in rows:
        table.add_row(*(str(row[c]) for c in columns))
    console.print(table)


def draw_narrow(console: Console, columns: list[str], rows: list[dict[str, Any]]) -> None:
    """A name a line, and beneath it what there is to say, each with its word."""
    from rich.padding import Padding
    from rich.text import Text

    said = "what" if "what" in columns else "effect"
    for row in rows:
        console.print(Text(row[columns[0]], "bold"))
        rest = [f"{c} {row[c]}" for c in columns[1:] if c != said and row[c]]
        for line in (row[said], "; ".join(rest)):
            if line:
                console.print(Padding(Text(line, "default" if line == row[said] else "dim"), (0, 0, 0, 4)))
