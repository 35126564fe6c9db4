"""Pictures inside HTML: matplotlib's where it is installed, bars of our own where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from estimators.memory import Estimate

PHONE = 4.4  # inches: type stays legible on a screen of 390 pixels
PAGE = 7.0


@lru_cache(maxsize=1)
def has_matplotlib() -> bool:
    from importlib.util import find_spec

    try:
        return find_spec("matplotlib") is not None
    except ValueError:  # somebody put None in its place
        return False


def ready() -> str:
    """Import what pictures need: the first step of a page."""
    if has_matplotlib():
        from selector.plots.style import ready as imported

        imported()
    return ""


def memory(estimate: Estimate, width: float = PHONE) -> str:
    """Memory of one GPU by instant."""
    if not has_matplotlib():
        from selector.report.bars import instants

        return instants(estimate)
    from selector import plots

    return plots.svg(plots.memory_by_instant(estimate, width=width), f"memory by instant, {estimate.strategy}")


def clock(estimate: Estimate, width: float = PHONE) -> str:
    """The clock of one step; nothing without matplotlib, whose seconds stand in the table too."""
    if not has_matplotlib():
        return ""
    from selector import plots

    return plots.svg(plots.step_clock(estimate, width=width), f"the clock of one step, {estimate.strategy}")


def strategies(estimates: Sequence[Estimate], width: float = PHONE) -> str:
    """Strategies at their peaks."""
    if not has_matplotlib():
        from selector.report.bars import peaks

        return peaks(estimates)
    from selector import plots

    return plots.svg(plots.strategies(estimates, width=width), "strategies side by side")
