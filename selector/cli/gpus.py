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
    from estimators.cluster import gpu_sources, gpus
    from estimators.errors import UnknownName

    wanted = (parsed.pattern or "").lower()
    cards = [card for card in gpus() if wanted in " ".join((card["id"], *card["torch_device_names"])).lower()]
    if not cards:
        raise UnknownName("GPU", parsed.pattern, [card["id"] for card in gpus()], "(dist-advisor gpus lists them)")
    document = {"schema": "dist-advisor/gpus/1", "rows": cards, "sources": gpu_sources()}
    rows = [row_of(card) for card in cards]
    emit(parsed, document, rows, lambda c: draw(c, rows))
    return 0


def row_of(card: dict[str, Any]) -> dict[str, Any]:
    """A card's main figures, each with its sources beside it."""

    def figure(value: dict[str, Any] | None, key: str = "value") -> tuple[Any, str]:
        return (None, "") if value is None else (value.get(key), " ".join(value.get("source") or ()))

    figures = {
        "memory_gib": figure(card["torch_total_memory_gib"], "min_seen"),
        "bf16_tflops": figure(card["dense_tflops"]["bf16"]),
        "memory_gb_per_s": figure(card["memory_bandwidth_gb_per_s"]),
        "link_gb_per_s": figure(card["link"], "unidirectional_gb_per_s"),
        "bf16": figure(card["bf16_hardware"]),
        "power_w": figure(card["board_power_w"]),
    }
    row: dict[str, Any] = {"gpu": card["id"]}
    for name, (value, source) in figures.items():
        row[name], row[f"{name}_source"] = value, source
    row["torch_names"] = ", ".join(card["torch_device_names"])
    return row


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
