"""Predicted against measured memory, with bands: a document of ``validate --cases``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from selector.plots.memory import NARROW
from selector.plots.style import LINES, MARKERS, QUIET, printable, settings, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BANDS = ((0.25, "#ececec"), (0.10, "#d2d2d2"))  # widest first
NAMED = 3  # of the largest errors


def accuracy(document: Mapping[str, Any], *, width: float = 7.5) -> Figure:
    """See :func:`selector.plots.accuracy`."""
    with settings():
        narrow = width < NARROW
        figure, axis = sheet(width, width + (2.0 if narrow else 0.9))
        rows = [r for r in document["rows"] if r["predicted"] > 0 and r["measured"] > 0]
        every = [v for r in rows for v in (r["predicted"], r["measured"])] or [1.0, 10.0]
        low, high = min(every) / 1.3, max(every) * 1.3
        for share, colour in BANDS:
            axis.fill_between([low, high], [low * (1 - share), high * (1 - share)], [low * (1 + share), high * (1 + share)],
                              color=colour, linewidth=0, label=f"within {share:.0%}")  # fmt: skip
        axis.plot([low, high], [low, high], color=QUIET, linewidth=1, label="predicted = measured")
        for index, quantity in enumerate(dict.fromkeys(r["quantity"] for r in rows)):
            some = [r for r in rows if r["quantity"] == quantity]
            axis.plot([r["measured"] for r in some], [r["predicted"] for r in some], linestyle="none", alpha=0.75,
                      marker=MARKERS[index % len(MARKERS)], color=LINES[index % len(LINES)].colour, markersize=5.5,
                      markeredgecolor="white", markeredgewidth=0.5, label=_words(document, quantity, len(some)))  # fmt: skip
        named = sorted(rows, key=lambda r: -abs(r["error"]))[:NAMED]
        _worst(axis, named)
        for one in (axis.xaxis, axis.yaxis):
            _ticks(one)
        axis.set_xlim(low, high)
        axis.set_ylim(low, high)
        axis.set_aspect("equal")
        axis.set_xlabel("measured memory of one GPU (GiB)")
        axis.set_ylabel("predicted memory of one GPU (GiB)")
        figure.suptitle("Predicted against measured", x=0.01, ha="left", fontsize=11, fontweight="bold")
        axis.set_title(f"{document['scored']:,} of {document['cases']:,} cases scored, in {document['groups']:,} groups",
                       fontsize=9, fontweight="normal", color=QUIET)  # fmt: skip
        handles, _ = axis.get_legend_handles_labels()
        figure.legend(
            handles=[*handles, *_key(named)], loc="outside lower left", ncols=1 if narrow else 2, fontsize=8.5
        )
    return figure


def _words(document: Mapping[str, Any], quantity: str, count: int) -> str:
    """A quantity with its score; mape and bias are averaged inside groups first."""
    score = document["by_quantity"].get(quantity) or {}
    name = printable(quantity, 20)
    if score.get("mape") is None:
        return f"{name}: {count}"
    return f"{name}: {count} rows, error {score['mape']:.0%}, bias {score['bias']:+.0%}"


def _worst(axis: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Numbers at the largest errors; their names stand in the legend."""
    places = ((9, 9), (9, -16), (-16, 9))
    for number, (row, place) in enumerate(zip(rows, places, strict=False), 1):
        axis.annotate(str(number), (row["measured"], row["predicted"]), place, textcoords="offset points", fontsize=9,
                      fontweight="bold", arrowprops={"arrowstyle": "-", "color": QUIET, "linewidth": 0.7})  # fmt: skip


def _key(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], linestyle="none", label=f"{number}: {printable(row['id'], 44)} ({row['error']:+.0%})")
        for number, row in enumerate(rows, 1)
    ]


def _ticks(axis: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.axes.set_xscale("log") if axis.axis_name == "x" else axis.axes.set_yscale("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda v, _: f"{v:,.0f}" if v >= 1 else f"{v:g}")
    axis.set_minor_formatter(NullFormatter())
