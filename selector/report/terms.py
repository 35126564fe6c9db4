"""Terms instant by instant, for one strategy or for two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from estimators.memory import Estimate
from estimators.result import Instant
from estimators.units import gib, readable
from selector.report.difference import lines, sentence

if TYPE_CHECKING:
    from rich.console import Console

PLACE_WORDS = {"gpu": "GPU", "host": "host, per node", "nvme": "NVMe, per node"}


def draw_terms(console: Console, estimate: Estimate, instants: Sequence[Instant]) -> None:
    """Each instant with its terms, largest first; the peak is marked."""
    from rich.table import Table

    console.print(
        f"[bold]{estimate.strategy}[/]: {gib(estimate.gpu.expected)} GiB of {gib(estimate.gpu.capacity)} at "
        f"{estimate.peak.name}; verdict {estimate.verdict}{f' ({estimate.reason})' if estimate.reason else ''}"
    )
    for instant in instants:
        mark = "  <- peak" if instant is estimate.peak else ""
        console.print(f"\n[bold]{instant.name}[/]  {gib(instant.gpu_bytes)} GiB on the GPU{mark}")
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(max_width=34)
        table.add_column(style="dim")
        table.add_column(style="dim", overflow="fold")
        for term in sorted(instant.terms, key=lambda t: (t.place != "gpu", -t.bytes)):
            where = "" if term.place == "gpu" else f" ({PLACE_WORDS[term.place]})"
            table.add_row(readable(term.bytes), term.name + where, term.category, term.formula)
        console.print(table)


def draw_difference(console: Console, a: Estimate, b: Estimate, names: Sequence[str]) -> None:
    """The answer, then every instant line by line: A, B and what B needs more (+) or less (-)."""
    from rich.table import Table
    from rich.text import Text

    console.print(sentence(a, b), style="bold")
    for name in names:
        console.print(
            f"\n[bold]{name}[/]  {gib(a[name].gpu_bytes)} -> {gib(b[name].gpu_bytes)} GiB on the GPU"
            f"{'  <- peak of A' if a.peak.name == name else ''}{'  <- peak of B' if b.peak.name == name else ''}"
        )
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
        table.add_column("term", max_width=34)
        for title in (a.run.strategy.base, b.run.strategy.base, "B - A"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("", style="dim", overflow="fold")
        for line in lines(a[name], b[name]):
            where = "" if line.place == "gpu" else f" ({PLACE_WORDS[line.place]})"
            gap = line.difference
            style = "red" if gap > 0 else "green" if gap < 0 else "dim"
            shown = ("+" if gap > 0 else "-" if gap < 0 else "") + readable(abs(gap))
            table.add_row(
                line.name + where, readable(line.a_bytes), readable(line.b_bytes), Text(shown, style), line.formula
            )
        console.print(table)
