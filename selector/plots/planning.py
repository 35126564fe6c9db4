"""Time and cost of a training run against the number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from selector.plan import Plan, Point
from selector.plots.memory import NARROW, fold
from selector.plots.style import LINES, MARKERS, QUIET, printable, settings, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DAY = 86400.0


def time_and_cost(
    plan: Plan, *, deadline_seconds: float | None = None, budget: float | None = None, width: float = 7.5
) -> Figure:
    """See :func:`selector.plots.time_and_cost`."""
    with settings():
        narrow = width < NARROW
        figure, (days, money) = sheet(width, 7.4, 2, 1, sharex=True)
        question = plan.question
        priced = any(p.cost.money is not None for p in plan.points)
        looks = _looks(plan.points)
        _line(
            days, plan.points, [(p.cost.days.low, p.cost.days.expected, p.cost.days.high) for p in plan.points], looks
        )
        days.set_ylabel("time (days)")
        spent = [p.cost.money or 0.0 if priced else p.cost.gpu_hours for p in plan.points]
        ratios = [
            (p.cost.days.low / p.cost.days.expected, p.cost.days.high / p.cost.days.expected) for p in plan.points
        ]
        _line(money, plan.points, [(s * low, s, s * high) for s, (low, high) in zip(spent, ratios, strict=True)], looks)
        money.set_ylabel("cost (unit of --price)" if priced else "GPU time (GPU-hours)")
        money.set_xlabel("GPUs (number)")
        for axis, limit, words in (
            (days, deadline_seconds and deadline_seconds / DAY, "deadline"),
            (money, budget if priced else None, "budget"),
        ):
            if limit:
                axis.axhline(limit, color=QUIET, linestyle="--", linewidth=1, label=words)
                axis.annotate(words, (1, limit), (-2, 2), xycoords=("axes fraction", "data"), ha="right", va="bottom",
                              textcoords="offset points", fontsize=8.5, color=QUIET)  # fmt: skip
        _counts(money, plan)
        title = f"{question.model.name} on {question.cluster.gpu.label}: {tokens_in_words(question.tokens)} tokens"
        figure.suptitle(fold(printable(title, 100), width * 0.85), x=0.01, ha="left", fontsize=11, fontweight="bold")
        days.set_title(fold(printable(plan.why, 240), width * 0.9), fontsize=9, fontweight="normal", color=QUIET)
        figure.legend(handles=_handles(looks, plan), loc="outside lower left", ncols=1 if narrow else 2)
    return figure


def tokens_in_words(tokens: float) -> str:
    """``tokens_in_words(3e11) == '300B'``."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if tokens >= size:
            return f"{tokens / size:g}{letter}"
    return f"{tokens:g}"


def _looks(points: Sequence[Point]) -> dict[str, tuple[str, str]]:
    """Colour and mark of each strategy, in the order in which they win."""
    names = dict.fromkeys(p.run.strategy.name for p in points)
    return {name: (LINES[i % len(LINES)].colour, MARKERS[i % len(MARKERS)]) for i, name in enumerate(names)}


def _line(
    axis: Axes,
    points: Sequence[Point],
    values: Sequence[tuple[float, float, float]],
    looks: dict[str, tuple[str, str]],
) -> None:
    """Expected values with the interval as a band; the mark says which strategy is fastest there."""
    from matplotlib.ticker import FixedLocator, NullLocator

    counts = [p.gpus for p in points]
    axis.fill_between(
        counts, [v[0] for v in values], [v[2] for v in values], color="#dddddd", linewidth=0, label="interval"
    )
    axis.plot(counts, [v[1] for v in values], color=QUIET, linewidth=1, zorder=2, label="expected")
    for point, (_, expected, _) in zip(points, values, strict=True):
        colour, marker = looks[point.run.strategy.name]
        axis.plot([point.gpus], [expected], color=colour, marker=marker, markersize=7, linestyle="none", zorder=3,
                  markeredgecolor="white", label="_point")  # fmt: skip
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(FixedLocator(_steps(values)))
    axis.yaxis.set_major_formatter(lambda v, _: f"{v:,.0f}" if v >= 1 else f"{v:g}")
    axis.yaxis.set_minor_locator(NullLocator())
    axis.grid(axis="y")


def _steps(values: Sequence[tuple[float, float, float]]) -> list[float]:
    """1, 2, 5, 10 ... around the values; more of them where they are near each other, powers of ten where they are not."""
    from math import ceil, floor, log10

    every = [v for triple in values for v in triple if v > 0] or [1.0]
    first, last = floor(log10(min(every))), ceil(log10(max(every)))
    near = max(every) < 5 * min(every)
    parts = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if near else (1, 2, 5) if last - first < 4 else (1,)
    return [part * 10.0**e for e in range(first, last + 1) for part in parts]


def _counts(axis: Axes, plan: Plan) -> None:
    """Counts as they were asked, as many as have room; the one up to which GPUs pay is marked."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axis.set_xscale("log", base=2)
    counts = [p.gpus for p in plan.points]
    powers = [n for n in counts if n & (n - 1) == 0] or counts
    axis.xaxis.set_major_locator(FixedLocator(powers))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(powers, [f"{n:,}" for n in powers])
    if plan.knee is not None:
        for one in axis.figure.axes:
            one.axvline(plan.knee.gpus, color=QUIET, linestyle=":", linewidth=1.2, label="knee")


def _handles(looks: dict[str, tuple[str, str]], plan: Plan) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found: list[Any] = [
        Line2D([], [], color=colour, marker=marker, markersize=7, linestyle="none", markeredgecolor="white",
               label=f"{printable(name, 50)} is fastest")
        for name, (colour, marker) in looks.items()
    ]  # fmt: skip
    found.append(Patch(facecolor="#dddddd", label="from everything fast to everything slow"))
    if plan.knee is not None:
        found.append(Line2D([], [], color=QUIET, linestyle=":", linewidth=1.2,
                            label=f"adding GPUs pays up to {plan.knee.gpus:,}"))  # fmt: skip
    return found
