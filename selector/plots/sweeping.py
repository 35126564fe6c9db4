"""Rows of a sweep: memory of one GPU beside what its card has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from estimators.units import GIB
from selector.plots.memory import HEADROOM
from selector.plots.style import CARD, EDGE, INK, Fill, amount, printable, settings, sheet
from selector.report.text import VERDICT_WORDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 60
VERDICTS = {
    "fits": Fill("#009E73"), "tight": Fill("#F0E442", "//"), "unknown": Fill("#56B4E9", ".."), "no": Fill("#D55E00", "xx"),
}  # fmt: skip
ANSWERS = ("strategy", "verdict", "gpu_process_bytes", "gpu_capacity_bytes", "host_bytes_per_node",
           "nvme_bytes_per_node", "peak_instant", "tokens_per_s_per_gpu", "error")  # fmt: skip


def combinations(rows: Sequence[Mapping[str, Any]], *, width: float = 10.0) -> Figure:
    """See :func:`selector.plots.combinations`."""
    with settings():
        shown = [r for r in rows if r["gpu_process_bytes"] is not None][:MOST_ROWS]
        figure, axis = sheet(width, 1.9 + 0.28 * max(len(shown), 1))
        capacities = [r["gpu_capacity_bytes"] / GIB for r in shown]
        sizes = [r["gpu_process_bytes"] / GIB for r in shown]
        cut = min(1.1 * max([*sizes, *capacities], default=1.0), HEADROOM * max(capacities, default=1.0))
        for at, (row, size, there) in enumerate(zip(shown, sizes, capacities, strict=True)):
            fill = VERDICTS[row["verdict"]]
            axis.barh(at, size, 0.66, facecolor=fill.colour, hatch=fill.hatch, edgecolor=EDGE, linewidth=0.4,
                      label=row["verdict"])  # fmt: skip
            axis.plot([there, there], [at - 0.42, at + 0.42], color=CARD, linewidth=1.6, label="_card", zorder=4)
            if size > cut:
                axis.plot([cut], [at], marker=">", color=INK, markersize=6, clip_on=False, zorder=6)
            axis.annotate(f"{amount(size)} of {amount(there)} GiB", (1, at), (10, 0), va="center", fontsize=8.5,
                          xycoords=("axes fraction", "data"), textcoords="offset points", annotation_clip=False)  # fmt: skip
        axis.set_xlim(0, cut)
        axis.set_ylim(len(shown) - 0.4, -0.6)
        axis.set_yticks(range(len(shown)), names(shown))
        axis.tick_params(axis="y", length=0, labelsize=7.5)
        axis.grid(axis="x")
        axis.set_xlabel("memory of one GPU, whole process (GiB)")
        rest = len(rows) - len(shown)
        title = f"{len(shown):,} combinations" + (f"; {rest:,} more are not drawn" if rest else "")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        figure.legend(handles=_handles({r["verdict"] for r in shown}), loc="outside lower left", ncols=5)
    return figure


def names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What sets each row apart: the model, and every column of the question that differs."""
    if not rows:
        return []
    asked = [k for k in rows[0] if k not in ANSWERS]
    differ = [k for k in asked if k != "model" and len({str(r[k]) for r in rows}) > 1]
    made = []
    for row in rows:
        words = [str(row.get("model") or "")]
        words += [_said(key, row[key]) for key in differ if row[key] is not None]
        made.append(printable(", ".join([*filter(None, words), str(row["strategy"])]), 84))
    return made


def _said(key: str, value: Any) -> str:
    return str(value) if isinstance(value, str) else f"{key.replace('_', ' ')} {value}"


def _handles(verdicts: set[str]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found: list[Any] = [
        Patch(facecolor=fill.colour, hatch=fill.hatch, edgecolor=EDGE, linewidth=0.4, label=VERDICT_WORDS[name])
        for name, fill in VERDICTS.items()
        if name in verdicts
    ]
    return [*found, Line2D([], [], color=CARD, linewidth=1.6, label="what the card has")]
