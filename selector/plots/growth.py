"""Memory against sequence length, micro-batch and GPUs, and the frontier of what fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from estimators.cluster import Cluster
from estimators.model.spec import ModelSpec
from estimators.strategy import Strategy
from estimators.units import GIB
from selector.plots.curves import Curves, Point, curves
from selector.plots.memory import NARROW, fold
from selector.plots.style import CARD, LINES, MARKERS, QUIET, amount, printable, settings, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST_GIB = 0.5  # the lowest tick of a logarithmic axis that is worth a line


def limits(
    model: ModelSpec,
    cluster: Cluster,
    strategies: Sequence[str | Strategy] | None = None,
    *,
    width: float = 9.0,
    **fields: Any,
) -> Figure:
    """See :func:`selector.plots.limits`."""
    found, left_out = curves(model, cluster, strategies, fields)
    with settings():
        narrow = width < NARROW
        figure, grid = sheet(width, 13.0 if narrow else 7.6, *((4, 1) if narrow else (2, 2)))
        lengths, batches, counts, frontier = grid.ravel()
        card = cluster.gpu.memory_bytes
        _memory(lengths, "sequence length (tokens)", [(c.strategy, c.by_length) for c in found], card)
        _memory(batches, "micro-batch (sequences per GPU)", [(c.strategy, c.by_batch) for c in found], card)
        _memory(counts, "GPUs (number)", [(c.strategy, c.by_count) for c in found], card)
        _frontier(frontier, found)
        figure.suptitle(
            fold(printable(f"What fits: {model.name} on {_spelled(cluster)}", 100), width * 0.85), x=0.01, ha="left",
            fontsize=11, fontweight="bold",
        )  # fmt: skip
        figure.legend(handles=_handles(found, card, cluster, left_out), loc="outside lower left",
                      ncols=1 if narrow else 2, handlelength=3)  # fmt: skip
    return figure


def _spelled(cluster: Cluster) -> str:
    nodes = f"{cluster.nodes} x " if cluster.nodes > 1 else ""
    return f"{nodes}{cluster.gpus_per_node} x {cluster.gpu.label}"


def _looks(row: int) -> dict[str, Any]:
    line = LINES[row % len(LINES)]
    return {"color": line.colour, "linestyle": line.hatch, "marker": MARKERS[row % len(MARKERS)], "markersize": 5,
            "linewidth": 1.5}  # fmt: skip


def _memory(axis: Axes, words: str, lines: Sequence[tuple[str, Sequence[Point]]], card: int) -> None:
    """One line a strategy, on logarithmic axes; a hollow mark is a point that does not surely fit."""
    values: list[float] = [card / GIB]
    for row, (name, line) in enumerate(lines):
        x, y = [p.at for p in line], [p.num_bytes / GIB for p in line]
        values += y
        looks = _looks(row)
        axis.plot(x, y, label=name, **{**looks, "marker": "none"})
        for p, size in zip(line, y, strict=True):
            face = looks["color"] if p.verdict == "fits" else "white"
            axis.plot([p.at], [size], marker=looks["marker"], markersize=5, linestyle="none", color=looks["color"],
                      markerfacecolor=face, label="_point")  # fmt: skip
    axis.axhline(card / GIB, color=CARD, linestyle=(0, (5, 2)), linewidth=1.3, label="card")
    _logarithmic(axis, sorted({p.at for _, line in lines for p in line}))
    axis.set_yscale("log")
    _gib_ticks(axis, min(values), max(values))
    axis.set_xlabel(words)
    axis.set_ylabel("memory of one GPU (GiB)")


def _gib_ticks(axis: Axes, low: float, high: float) -> None:
    """1, 2, 5, 10 ... GiB as plain numbers."""
    from matplotlib.ticker import FixedLocator, NullLocator

    low = max(low, FEWEST_GIB) / 1.3
    high = high * 1.3
    steps = [m * 10.0**e for e in range(-1, 7) for m in ((1, 2, 5) if high / low < 2000 else (1,))]
    shown = [s for s in steps if low <= s <= high]
    axis.yaxis.set_major_locator(FixedLocator(shown))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_yticks(shown, [f"{s:g}" if s < 1000 else f"{s:,.0f}" for s in shown])
    axis.set_ylim(low, high)
    axis.grid(axis="y")


def _logarithmic(axis: Axes, values: Sequence[int]) -> None:
    """Powers of two as short words: 512, 2k, 128k."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axis.set_xscale("log", base=2)
    powers = [v for v in values if v & (v - 1) == 0] or list(values)
    axis.xaxis.set_major_locator(FixedLocator(powers))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(powers, [short(v) for v in powers])


def short(value: int) -> str:
    """``short(131072) == '128k'``."""
    return f"{value // 1024}k" if value >= 1024 and value % 1024 == 0 else f"{value:,}"


def _frontier(axis: Axes, found: Sequence[Curves]) -> None:
    """The largest micro-batch that surely fits at each sequence length: below a line everything fits."""
    for row, one in enumerate(found):
        if one.frontier:
            axis.plot(*zip(*one.frontier, strict=True), label=one.strategy, **_looks(row))
    lengths = sorted({p.at for c in found for p in c.by_length})
    _logarithmic(axis, lengths)
    axis.set_xlabel("sequence length (tokens)")
    axis.set_ylabel("largest micro-batch that fits\n(sequences per GPU)")
    if lengths:
        axis.set_xlim(lengths[0] / 1.3, lengths[-1] * 1.3)
    most = max((size for c in found for _, size in c.frontier), default=0)
    if not most:
        axis.set_yticks([])
        axis.text(0.5, 0.5, "nothing fits at any length shown", transform=axis.transAxes, ha="center", color=QUIET)
        return
    axis.set_yscale("log", base=2)
    from matplotlib.ticker import FixedLocator, NullLocator

    shown = [2**k for k in range(most.bit_length() + 1)]
    shown = shown if len(shown) < 9 else shown[::2]
    axis.yaxis.set_major_locator(FixedLocator(shown))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_yticks(shown, [f"{s:,}" for s in shown])
    axis.set_ylim(0.8, most * 1.4)
    axis.grid(axis="y")


def _handles(found: Sequence[Curves], card: int, cluster: Cluster, left_out: int) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=printable(c.strategy, 50), **_looks(row)) for row, c in enumerate(found)]
    words = f"{printable(cluster.gpu.label, 30)} {amount(card / GIB)} GiB"
    handles.append(Line2D([], [], color=CARD, linestyle=(0, (5, 2)), linewidth=1.3, label=words))
    handles.append(Line2D([], [], color=QUIET, marker="o", markerfacecolor="white", linestyle="none", markersize=5,
                          label="hollow: does not surely fit"))  # fmt: skip
    if left_out:
        handles.append(Line2D([], [], linestyle="none", label=f"{left_out} more strategies are not drawn"))
    return handles
