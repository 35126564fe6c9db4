"""What would lower the peak, as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from estimators.memory import Estimate
from estimators.units import gib
from selector.report.text import VERDICT_STYLE

if TYPE_CHECKING:
    from rich.console import Console

    from selector.levers import Lever

MOST = 6  # lines; JSON has all of them


def draw_levers(console: Console, found: Estimate, made: Sequence[Lever]) -> None:
    """The binding instant, then a line a lever: saved, what then binds, verdict, speed, the change."""
    from rich.table import Table
    from rich.text import Text

    binds = f"\n[bold]{found.strategy}[/]: {found.peak.name} binds at {gib(found.peak.gpu_bytes)} GiB"
    if not made:
        console.print(f"{binds}; no single change that keeps the tokens lowers it")
        return
    console.print(f"{binds}; what would lower it most, one change at a time:")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 1), header_style="dim")
    for title in ("saves GiB", "then binds", "at GiB", "verdict", "speed", "change"):
        table.add_column(title, justify="right" if title in ("saves GiB", "at GiB", "speed") else "left",
                         overflow="fold" if title == "change" else "ellipsis")  # fmt: skip
    for lever in made[:MOST]:
        after = lever.after
        table.add_row(
            gib(lever.saved_bytes), after.peak.name, gib(after.peak.gpu_bytes),
            Text(after.verdict, VERDICT_STYLE[after.verdict]), f"x {lever.speed:.2f}" if lever.speed else "",
            lever.says + (f" ({lever.strategy})" if lever.strategy != found.strategy else ""),
        )  # fmt: skip
    console.print(table)
