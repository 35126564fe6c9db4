"""Bars of memory: one estimate by instant, several strategies at their peaks, two of them beside each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from estimators.memory import Estimate
from estimators.result import CATEGORIES, Instant
from estimators.units import GIB
from selector.plots.style import (
    CARD,
    EDGE,
    FILLS,
    INK,
    QUIET,
    amount,
    legend_of,
    printable,
    settings,
    sheet,
)
from selector.report.text import VERDICT_WORDS, speed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLACES = {"gpu": "memory of one GPU (GiB)", "host": "RAM of one node (GiB)", "nvme": "NVMe of one node (GiB)"}
NARROW = 6.0  # inches below which a picture is for a phone
SLIVER = 0.12  # bars below this share of the card are drawn without its line
HEADROOM = 2.5  # bars may be so many times the card before the card's line is drawn small


def about(estimate: Estimate) -> str:
    """The question in one line: model, cluster, workload."""
    run = estimate.run
    cluster, work = run.cluster, run.workload
    nodes = f"{cluster.nodes} x " if cluster.nodes > 1 else ""
    return printable(
        f"{run.model.name}, {nodes}{cluster.gpus_per_node} x {cluster.gpu.label}, {work.method}, "
        f"{work.micro_batch} x {work.seq_len:,} tokens",
        90,
    )


def capacity(estimate: Estimate, place: str) -> int | None:
    """Bytes that there are of a place; None where nobody said."""
    cluster = estimate.run.cluster
    return {"gpu": estimate.gpu.capacity, "host": cluster.host_bytes, "nvme": cluster.nvme_bytes}[place]


def stack(axis: Axes, at: float, amounts: Mapping[str, int], width: float, *, flat: bool = False) -> float:
    """One bar of stacked categories, in GiB; returns its height. ``flat``: the bar lies."""
    top = 0.0
    for category in CATEGORIES:
        size = amounts.get(category, 0) / GIB
        if size <= 0:
            continue
        fill = FILLS[category]
        looks: dict[str, Any] = {
            "facecolor": fill.colour, "hatch": fill.hatch, "edgecolor": EDGE, "linewidth": 0.4, "label": category,
        }  # fmt: skip
        if flat:
            axis.barh(at, size, width, left=top, **looks)
        else:
            axis.bar(at, size, width, bottom=top, **looks)
        top += size
    return top


def outside(axis: Axes, at: float, top: float, bytes_: float, width: float, *, flat: bool = False) -> float:
    """What is not a tensor, hollow on top of a bar: context and communicators; returns the new height in GiB."""
    size = bytes_ / GIB
    looks: dict[str, Any] = {
        "facecolor": "none",
        "edgecolor": QUIET,
        "linewidth": 0.7,
        "linestyle": ":",
        "label": "outside",
    }
    if size > 0 and flat:
        axis.barh(at, size, width, left=top, **looks)
    elif size > 0:
        axis.bar(at, size, width, bottom=top, **looks)
    return top + size


def runtime_bytes(estimate: Estimate) -> float:
    """Expected bytes of context and communicators: the verdict counts them beside the tensors."""
    return sum(o.expected for o in estimate.gpu.runtime)


def top_of(highest: float, bytes_: int | None) -> float:
    """The end of an axis of GiB: everything and the card's line, or the bars alone where they would be slivers."""
    there = (bytes_ or 0) / GIB
    return 1.12 * (highest if highest < SLIVER * there else max(highest, there)) or 1.0


def card_line(axis: Axes, bytes_: int | None, words: str, *, flat: bool = False) -> None:
    """The line of what there is, with its size; the axis has its limits already."""
    if not bytes_:
        return
    size = bytes_ / GIB
    beyond = size > (axis.get_xlim() if flat else axis.get_ylim())[1]
    where = (", right of the picture" if flat else ", above the picture") if beyond else ""
    draw = axis.axvline if flat else axis.axhline
    draw(size, color=CARD, linestyle=(0, (5, 2)), linewidth=1.3, zorder=3, label=f"{words} {amount(size)} GiB{where}")


def has(estimate: Estimate, place: str) -> str:
    """What the line of a place says."""
    return {"gpu": printable(estimate.run.cluster.gpu.label, 30), "host": "RAM of a node", "nvme": "NVMe of a node"}[
        place
    ]


def instants_with(estimate: Estimate, place: str) -> list[Instant]:
    """Instants in the order of a run; those of a place where something is held."""
    return [i for i in estimate.instants if place == "gpu" or i.total(place)]


def memory_by_instant(estimate: Estimate, *, place: str = "gpu", width: float = 7.5) -> Figure:
    """See :func:`selector.plots.memory_by_instant`."""
    with settings():
        narrow = width < NARROW
        figure, axis = sheet(width, 4.8 if narrow else 4.4)
        shown = instants_with(estimate, place)
        beside = runtime_bytes(estimate) if place == "gpu" else 0.0
        highest = 0.0
        for at, instant in enumerate(shown):
            peak = place == "gpu" and instant is estimate.peak
            top = stack(axis, at, instant.by_category(place), 0.72)
            above = outside(axis, at, top, beside, 0.72)
            number(axis, (at, above), amount(top), bold=peak)
            highest = max(highest, above)
        there = capacity(estimate, place)
        axis.set_ylim(0, top_of(highest, there))
        card_line(axis, there, has(estimate, place))
        axis.set_xlim(-0.6, max(len(shown), 1) - 0.4)
        names = [f"{i.name}\n(peak)" if place == "gpu" and i is estimate.peak else i.name for i in shown]
        axis.set_xticks(range(len(shown)), names)
        axis.tick_params(axis="x", length=0, labelsize=7.5 if narrow else 9)
        axis.set_xlabel("instant of the run; numbers: GiB of tensors")
        axis.set_ylabel(PLACES[place])
        axis.grid(axis="y")
        head(figure, axis, f"{printable(estimate.strategy, 60)}: {verdict_words(estimate)}", estimate, width)
        legend(figure, axis, categories_of(shown, place), width, beside > 0)
    return figure


def number(axis: Axes, at: tuple[float, float], text: str, *, bold: bool = False, size: float = 8.5) -> None:
    """A figure above a bar, legible over lines."""
    axis.annotate(text, at, (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=size, linespacing=1.0,
                  fontweight="bold" if bold else "normal", zorder=5,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.85})  # fmt: skip


def categories_of(instants: Iterable[Instant], place: str = "gpu") -> set[str]:
    """Categories that occur, with something in them."""
    return {c for instant in instants for c, size in instant.by_category(place).items() if size > 0}


def head(figure: Figure, axis: Axes, title: str, estimate: Estimate, width: float) -> None:
    """The title, and the question below it."""
    figure.suptitle(fold(title, width * 0.85), x=0.01, ha="left", fontsize=11, fontweight="bold")
    axis.set_title(fold(about(estimate), width), fontsize=9, fontweight="normal", color=QUIET)


def fold(text: str, width: float) -> str:
    """A line broken where a picture of so many inches would cut it."""
    from textwrap import fill

    return fill(text.replace(" x ", "\N{NO-BREAK SPACE}x\N{NO-BREAK SPACE}"), int(width * 12.5))


def legend(figure: Figure, axis: Axes, categories: set[str], width: float, beside: bool) -> None:
    """Below the picture, so that it never hides a bar."""
    lines = [h for h in axis.get_lines() if not str(h.get_label()).startswith("_")]
    handles = [*legend_of(categories, beside), *lines]
    columns = min(len(handles), 2 if width < NARROW else 4) or 1
    figure.legend(handles=handles, loc="outside lower left", ncols=columns, handlelength=1.8, columnspacing=1.2)


def strategies(estimates: Sequence[Estimate], *, width: float = 9.0) -> Figure:
    """See :func:`selector.plots.strategies`."""
    with settings():
        count, narrow = len(estimates), width < NARROW
        figure, axis = sheet(width, 2.2 + (0.44 if narrow else 0.3) * max(count, 1) + (0.6 if narrow else 0))
        biggest = max((e.gpu.capacity for e in estimates), default=0)
        highest = max((e.peak.gpu_bytes + runtime_bytes(e) for e in estimates), default=0)
        # a bar far beyond the card is cut, so that those that fit can be compared
        cut = min(top_of(highest / GIB, biggest), HEADROOM * biggest / GIB or 1.0)
        thick = 0.42 if narrow else 0.68
        for row, estimate in enumerate(estimates):
            top = stack(axis, row, estimate.peak.by_category(), thick, flat=True)
            if outside(axis, row, top, runtime_bytes(estimate), thick, flat=True) > cut:
                axis.plot([cut], [row], marker=">", color=INK, markersize=6, clip_on=False, zorder=6)
        axis.set_xlim(0, cut)
        for bytes_, estimate in {e.gpu.capacity: e for e in estimates}.items():
            card_line(axis, bytes_, has(estimate, "gpu"), flat=True)
        axis.set_ylim(count - 0.4, -0.75 if narrow else -0.6)
        axis.tick_params(axis="y", length=0)
        axis.set_xlabel("memory of one GPU at its peak (GiB)")
        axis.grid(axis="x")
        title = f"Strategies for {about(estimates[0])}" if estimates else "No strategy"
        figure.suptitle(fold(title, width * 0.85), x=0.01, ha="left", fontsize=11, fontweight="bold")
        name_rows(axis, estimates, narrow)
        categories = categories_of(e.peak for e in estimates)
        legend(figure, axis, categories, width, any(map(runtime_bytes, estimates)))
    return figure


def name_rows(axis: Axes, estimates: Sequence[Estimate], narrow: bool) -> None:
    """Names to the left and figures in columns to the right; on a phone both above each bar."""
    looks: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center",
                             "annotation_clip": False}  # fmt: skip
    names = [printable(e.strategy, 44) for e in estimates]
    axis.set_yticks(range(len(estimates)), [""] * len(estimates) if narrow else names)
    columns = ((36, "GiB", "right"), (44, "at", "left"), (96, "verdict", "left"), (206, "tok/s/GPU", "right"))
    if not narrow:
        for offset, title, align in columns:
            axis.annotate(title, (1, -0.6), (offset, 6), ha=align, fontsize=8.5, color=QUIET, **looks)
    for row, estimate in enumerate(estimates):
        size, verdict = amount(estimate.peak.gpu_bytes / GIB), verdict_words(estimate)
        if narrow:
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.4}
            axis.annotate(names[row], (0, row - 0.42), (2, 0), ha="left", fontsize=8, zorder=6, bbox=box, **looks)
            axis.annotate(f"{size} GiB, {verdict}", (1, row - 0.42), (-2, 0), ha="right", fontsize=8, zorder=6,
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4}, **looks)  # fmt: skip
            continue
        rate = f"{speed(estimate):,.0f}" if speed(estimate) else "-"
        for (offset, _, align), text in zip(columns, (size, estimate.peak.name, verdict, rate), strict=True):
            axis.annotate(text, (1, row), (offset, 0), ha=align, fontsize=8.5, **looks)


def verdict_words(estimate: Estimate) -> str:
    """``does not fit``, or ``no: host RAM`` where it is not the card that is too small."""
    if estimate.verdict == "no" and estimate.reason in ("host RAM", "NVMe"):
        return f"no: {estimate.reason}"
    return VERDICT_WORDS[estimate.verdict]


def difference(a: Estimate, b: Estimate, *, width: float = 7.5) -> Figure:
    """See :func:`selector.plots.difference`."""
    from selector.report.difference import instants_in_common

    with settings():
        figure, axis = sheet(width, 4.8)
        names = instants_in_common(a, b)
        narrow = width < NARROW
        highest = 0.0
        for at, name in enumerate(names):
            for letter, estimate, offset in (("A", a, -0.21), ("B", b, 0.21)):
                top = stack(axis, at + offset, estimate[name].by_category(), 0.38)
                above = outside(axis, at + offset, top, runtime_bytes(estimate), 0.38)
                highest = max(highest, above)
                told = f"{top:.0f}" if narrow and top >= 10 else amount(top)  # side by side on a phone
                number(axis, (at + offset, above), f"{letter}\n{told}", bold=estimate.peak.name == name,
                       size=7.5 if narrow else 8.5)  # fmt: skip
        axis.set_ylim(0, top_of(highest, a.gpu.capacity) * 1.05)
        card_line(axis, a.gpu.capacity, has(a, "gpu"))
        axis.set_xticks(range(len(names)), names)
        axis.tick_params(axis="x", length=0, labelsize=7.5 if narrow else 9)
        axis.set_xlabel(
            f"instant of the run; numbers: GiB of tensors,{chr(10) if narrow else ' '}bold at the peak of a strategy"
        )
        axis.set_ylabel(PLACES["gpu"])
        axis.grid(axis="y")
        head(figure, axis, f"A {printable(a.strategy, 40)} and B {printable(b.strategy, 40)}", a, width)
        seen = categories_of(e[name] for e in (a, b) for name in names)
        legend(figure, axis, seen, width, runtime_bytes(a) + runtime_bytes(b) > 0)
    return figure
