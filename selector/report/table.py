"""Estimates as a table for the terminal: legible at 80 columns, more of it where there is room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from estimators.memory import Estimate
from estimators.units import gib
from selector.report.text import CATEGORY_WORDS, VERDICT_STYLE, bar, speed

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 140  # columns from which the peak's categories stand beside the total
CAPTION = "GPU GiB: tensors of one GPU at its peak. host: GiB of a node's RAM. tok/s: expected, of one GPU."
SHARES = ("params", "gradients", "master", "optimizer", "activations", "logits", "buffers", "temporaries")


def draw_estimates(console: Console, title: str, estimates: Sequence[Estimate]) -> None:
    """The table of ``dist-advisor estimate``."""
    from rich.table import Table
    from rich.text import Text

    wide = console.width >= WIDE
    console.print(title, style="bold", soft_wrap=False)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("strategy", no_wrap=True, overflow="ellipsis", min_width=20)
    table.add_column("verdict", no_wrap=True)
    table.add_column("GPU GiB", justify="right", no_wrap=True)
    table.add_column("of the card", no_wrap=True)
    table.add_column("host", justify="right", no_wrap=True)
    table.add_column("peak", no_wrap=True)
    table.add_column("tok/s", justify="right", no_wrap=True)
    for category in SHARES if wide else ():
        table.add_column(CATEGORY_WORDS[category], justify="right", no_wrap=True)
    if wide:
        table.add_column("NVMe", justify="right", no_wrap=True)
    for estimate in estimates:
        style = VERDICT_STYLE[estimate.verdict]
        share = estimate.gpu.expected / estimate.gpu.capacity
        found = estimate.peak.by_category()
        cells: list[Text | str] = [
            estimate.strategy,
            Text(estimate.verdict, style),
            gib(estimate.gpu.expected),
            Text(bar(share, 24 if wide else 8), style),
            gib(estimate.host.expected, 0),
            estimate.peak.name,
            f"{speed(estimate):,.0f}" if speed(estimate) else "",
        ]
        if wide:
            cells += [gib(found[c]) if c in found else "" for c in SHARES]
            cells.append(gib(estimate.nvme_bytes, 0) if estimate.nvme_bytes else "")
        table.add_row(*cells)
    console.print(table)
    console.print(CAPTION, style="dim")
    if line := fastest(estimates):
        console.print(line)


def fastest(estimates: Sequence[Estimate]) -> str:
    """How fast the fastest that fits is, what binds it and what it costs; which figure of the card is missing."""
    from selector.speed import speed_sentences

    fitting = [e for e in estimates if e.verdict in ("fits", "tight")]
    if not fitting:
        return ""
    best = max(fitting, key=speed)
    said = ". ".join(speed_sentences(best))
    return f"{best.strategy}: {said}" if speed(best) else said


def rows_of(estimates: Sequence[Estimate]) -> list[dict[str, object]]:
    """The same as plain rows, bytes and all categories at the peak, for CSV and markdown."""
    return [
        {
            "strategy": e.strategy,
            "engine": e.run.strategy.engine,
            "verdict": e.verdict,
            "gpu_allocated_bytes": round(e.gpu.expected),
            "gpu_process_bytes": round(e.gpu.process.expected),
            "gpu_capacity_bytes": e.gpu.capacity,
            "host_bytes_per_node": round(e.host.expected),
            "nvme_bytes_per_node": e.nvme_bytes,
            "peak_instant": e.peak.name,
            "tokens_per_s_per_gpu": round(speed(e)) or None,
            **{f"{c}_bytes": e.peak.by_category().get(c, 0) for c in CATEGORY_WORDS},
        }
        for e in estimates
    ]
