"""The strategies that an answer looked at, each once: the choice, what else there is, what was rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimators.memory import Estimate

if TYPE_CHECKING:
    from selector.recommendation import Recommendation

MOST = 20


def looked_at(answer: Recommendation) -> list[Estimate]:
    """At most ``MOST`` estimates, the choice first; alternatives that change the question are left out."""
    found = [answer.estimate] if answer.estimate is not None else []
    if answer.choice is not None:
        found += [a.estimate for a in answer.alternatives]
    found += [r.estimate for r in answer.rejected if r.estimate is not None]
    first: dict[str, Estimate] = {}
    for one in found:
        first.setdefault(one.strategy, one)
    return list(first.values())[:MOST]
