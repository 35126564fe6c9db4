"""The clock of one step: what is alive while the seconds pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from estimators.memory import Estimate
from estimators.time import Unknown
from estimators.time.clock import Clock, clock
from selector.plots.memory import (
    NARROW,
    PLACES,
    capacity,
    card_line,
    categories_of,
    has,
    head,
    legend,
    number,
    outside,
    runtime_bytes,
    stack,
    top_of,
)  # fmt: skip
from selector.plots.style import QUIET, amount, printable, settings, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHASES = ("forward", "loss", "backward", "reduce", "step")
LEAST, LEAST_NARROW = 0.1, 0.155  # of the picture: a shorter phase is drawn as wide as this, so that it can be read
EARLIER = 0.14  # width of all earlier micro-batches together


def widths(seconds: Sequence[float], least: float = LEAST) -> list[float]:
    """Shares of the picture, summing to 1: as the seconds are, but none below ``least``."""
    total = sum(seconds)
    if not total:
        return [1 / len(seconds)] * len(seconds)
    short = {at for at, value in enumerate(seconds) if value < least * total}
    while True:
        rest = sum(value for at, value in enumerate(seconds) if at not in short)
        left = 1 - least * len(short)
        more = {at for at, value in enumerate(seconds) if at not in short and value / rest * left < least}
        if not more:
            return [least if at in short else value / rest * left for at, value in enumerate(seconds)]
        short |= more


def in_words(seconds: float) -> str:
    """``0.81 s``, ``7.0 ms``, ``2.5 min``.

    >>> in_words(0.814), in_words(0.00701), in_words(150), in_words(0)
    ('0.81 s', '7.0 ms', '2.5 min', '0 s')
    """
    if not seconds:
        return "0 s"
    if seconds < 0.1:
        return f"{1000 * seconds:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def step_clock(estimate: Estimate, *, width: float = 7.5) -> Figure:
    """See :func:`selector.plots.step_clock`."""
    with settings():
        narrow = width < NARROW
        least = LEAST_NARROW if narrow else LEAST
        figure, axis = sheet(width, 5.0 if narrow else 4.6)
        shown = [i for name in PHASES for i in estimate.instants if i.name == name]
        time = clock(estimate.run)
        known = isinstance(time, Clock)
        spans = [getattr(time, i.name) if known else 0.0 for i in shown]
        at = _earlier(axis, time)
        beside, highest, middles = runtime_bytes(estimate), 0.0, []
        for instant, span in zip(shown, widths(spans, least), strict=True):
            middle = at + span / 2
            top = stack(axis, middle, instant.by_category(), span)
            above = outside(axis, middle, top, beside, span)
            number(axis, (middle, above), amount(top), bold=instant is estimate.peak)
            highest, at = max(highest, above), at + span
            middles.append(middle)
        there = capacity(estimate, "gpu")
        axis.set_ylim(0, top_of(highest, there))
        card_line(axis, there, has(estimate, "gpu"))
        axis.set_xlim(-0.01, at + 0.01)
        names = [f"{i.name}\n{in_words(s)}" if known else i.name for i, s in zip(shown, spans, strict=True)]
        axis.set_xticks(middles, names)
        axis.tick_params(axis="x", length=0, labelsize=7.5 if narrow else 9)
        axis.set_xlabel(_axis_words(time, spans, least))
        axis.set_ylabel(PLACES["gpu"])
        axis.grid(axis="y")
        head(figure, axis, f"{printable(estimate.strategy, 60)}: {_step_words(time)}", estimate, width)
        legend(figure, axis, categories_of(shown), width, beside > 0)
    return figure


def _earlier(axis: Axes, time: Clock | Unknown) -> float:
    """The micro-batches before the last, as one band; returns where the last begins."""
    if not isinstance(time, Clock) or time.micro_steps == 1:
        return 0.0
    axis.axvspan(0, EARLIER, facecolor="#eeeeee", edgecolor=QUIET, hatch="///", linewidth=0, zorder=0)
    count = time.micro_steps - 1
    text = f"{count:,} micro-batch{'es' if count > 1 else ''} before:\n{in_words(time.earlier)}"
    axis.text(EARLIER / 2, 0.5, text, transform=axis.get_xaxis_transform(), rotation=90, ha="center", va="center",
              fontsize=8.5, zorder=6, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})  # fmt: skip
    return EARLIER + 0.02


def _axis_words(time: Clock | Unknown, spans: Sequence[float], least: float) -> str:
    """What the widths mean."""
    if isinstance(time, Unknown):
        return "phase of a step (no seconds: the card has no figures)"
    short = any(s < least * sum(spans) for s in spans)
    end = "\n" if least == LEAST_NARROW else " "
    widened = f";{end}short phases are drawn wider" if short else ""
    return f"expected time of the phases of a step (s){widened}"


def _step_words(time: Clock | Unknown) -> str:
    return f"one step takes {in_words(time.total)}" if isinstance(time, Clock) else "one step"
