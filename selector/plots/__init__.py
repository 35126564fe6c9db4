"""Pictures of results, by matplotlib (extra ``plots``), which is imported when a picture is drawn and never before.

Every function returns a ``matplotlib.figure.Figure`` that belongs to no global state, so several threads may draw.

- :func:`memory_by_instant` one estimate: bars by instant, stacked by category, with the card's line
- :func:`step_clock` one estimate: the same along the seconds of a step
- :func:`strategies` several estimates side by side
- :func:`difference` two estimates, instant by instant
- :func:`limits` memory against sequence length, micro-batch and GPUs, with the frontier of what fits
- :func:`time_and_cost` a plan: days and money against the number of GPUs
- :func:`accuracy` measured cases: predicted against measured
- :func:`validation` one run: measured beside predicted
- :func:`combinations` rows of a sweep

``save(figure, "a.svg")`` writes PNG, SVG or PDF, the same bytes for the same picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from selector.plots.saving import check, save, svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from estimators.cluster import Cluster
    from estimators.memory import Estimate
    from estimators.model.spec import ModelSpec
    from estimators.strategy import Strategy
    from selector.plan import Plan
    from selector.recommendation import Recommendation

KINDS = ("memory", "clock", "host")
__all__ = [
    "KINDS",
    "accuracy",
    "check",
    "combinations",
    "difference",
    "limits",
    "memory_by_instant",
    "of_estimate",
    "of_recommendation",
    "save",
    "step_clock",
    "strategies",
    "svg",
    "time_and_cost",
    "validation",
]


def of_estimate(estimate: Estimate, kind: str = "memory") -> Figure:
    """What ``estimate.plot(kind)`` shows: ``memory`` by instant, the ``clock`` of a step, ``host`` RAM by instant."""
    from estimators.errors import UnknownName

    if kind not in KINDS:
        raise UnknownName("picture", str(kind), KINDS, f"(one of {', '.join(KINDS)})")
    if kind == "clock":
        return step_clock(estimate)
    return memory_by_instant(estimate, place="host" if kind == "host" else "gpu")


def of_recommendation(answer: Recommendation, kind: str = "memory") -> Figure:
    """What ``rec.plot(kind)`` shows: that of the choice, or ``strategies``: the choice beside all that was looked at."""
    from selector.plots.chosen import looked_at

    if kind == "strategies" or (answer.estimate is None and kind in KINDS):
        return strategies(looked_at(answer))
    if answer.estimate is None or kind not in KINDS:
        from estimators.errors import UnknownName

        known = (*KINDS, "strategies")
        raise UnknownName("picture", str(kind), known, f"(one of {', '.join(known)})")
    return of_estimate(answer.estimate, kind)


def memory_by_instant(estimate: Estimate, *, place: str = "gpu", width: float = 7.5) -> Figure:
    """Memory of one GPU at each instant, in GiB, stacked by category, with the line of what the card has.

    ``place``: ``gpu``, or ``host`` or ``nvme`` of a node. ``width`` in inches. Raises ``MissingDependency``.
    """
    from selector.plots.memory import memory_by_instant as draw

    return draw(estimate, place=place, width=width)


def step_clock(estimate: Estimate, *, width: float = 7.5) -> Figure:
    """Memory along the seconds of one optimizer step: forward, loss, backward, reduce, step."""
    from selector.plots.clock import step_clock as draw

    return draw(estimate, width=width)


def strategies(estimates: Sequence[Estimate], *, width: float = 9.0) -> Figure:
    """The peak of each strategy, stacked by category, with the card's line, the verdict and the speed."""
    from selector.plots.memory import strategies as draw

    return draw(estimates, width=width)


def difference(a: Estimate, b: Estimate, *, width: float = 7.5) -> Figure:
    """Two strategies instant by instant, stacked by category."""
    from selector.plots.memory import difference as draw

    return draw(a, b, width=width)


def limits(
    model: ModelSpec,
    cluster: Cluster,
    strategies: Sequence[str | Strategy] | None = None,
    *,
    width: float = 9.0,
    **fields: Any,
) -> Figure:
    """Memory against sequence length, micro-batch and GPUs, and the largest micro-batch that fits at each length."""
    from selector.plots.growth import limits as draw

    return draw(model, cluster, strategies, width=width, **fields)


def time_and_cost(
    plan: Plan, *, deadline_seconds: float | None = None, budget: float | None = None, width: float = 7.5
) -> Figure:
    """Days, and money where a price is known, against the number of GPUs; lines for a deadline and a budget."""
    from selector.plots.planning import time_and_cost as draw

    return draw(plan, deadline_seconds=deadline_seconds, budget=budget, width=width)


def accuracy(document: Mapping[str, Any], *, width: float = 7.5) -> Figure:
    """Predicted against measured GiB of a ``dist-advisor/accuracy/1`` document."""
    from selector.plots.measured import accuracy as draw

    return draw(document, width=width)


def validation(document: Mapping[str, Any], *, width: float = 7.5) -> Figure:
    """Measured beside predicted at each instant of a ``dist-advisor/validation/1`` document."""
    from selector.plots.validated import validation as draw

    return draw(document, width=width)


def combinations(rows: Sequence[Mapping[str, Any]], *, width: float = 10.0) -> Figure:
    """Rows of ``dist-advisor/sweep/1``: memory of one GPU as a share of its card."""
    from selector.plots.sweeping import combinations as draw

    return draw(rows, width=width)
