"""One validation: what an engine held at each instant beside what was predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from estimators.units import GIB, MIB
from selector.plots.memory import number
from selector.plots.style import EDGE, FILLS, QUIET, amount, printable, settings, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDES = (
    ("predicted_bytes", "predicted", FILLS["params"], -0.2),
    ("measured_bytes", "measured", FILLS["gradients"], 0.2),
)


def validation(document: Mapping[str, Any], *, width: float = 7.5) -> Figure:
    """See :func:`selector.plots.validation`."""
    with settings():
        figure, axis = sheet(width, 4.2)
        instants = document["instants"]
        most = max((i[key] or 0 for i in instants for key, *_ in SIDES), default=0)
        unit, word = (GIB, "GiB") if most >= GIB else (MIB, "MiB")
        for at, instant in enumerate(instants):
            for key, words, fill, offset in SIDES:
                size = (instant[key] or 0) / unit
                axis.bar(at + offset, size, 0.36, facecolor=fill.colour, hatch=fill.hatch, edgecolor=EDGE, linewidth=0.4,
                         label=words if at == 0 else f"_{words}")  # fmt: skip
                number(axis, (at + offset, size), amount(size))
        axis.set_ylim(0, 1.15 * most / unit or 1)
        axis.set_xticks(range(len(instants)), [i["name"] for i in instants])
        axis.tick_params(axis="x", length=0)
        axis.set_xlabel("instant of the run")
        axis.set_ylabel(f"tensors of one rank ({word})")
        axis.grid(axis="y")
        said = document["status"]
        if document["error"] is not None:
            said += f", {document['error']:+.1%} at the peak"
        title = f"{printable(document['strategy'], 60)}, mode {document['mode']}: {said}"
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        name = printable(document["model"]["name"] or "model", 60)
        axis.set_title(f"{name}, {document['ranks']} ranks", fontsize=9, fontweight="normal", color=QUIET)
        if instants:
            figure.legend(loc="outside lower left", ncols=2)
    return figure
