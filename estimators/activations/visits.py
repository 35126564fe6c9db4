"""A block's forward, cut where its modules are entered and left.

ZeRO-3 gathers and lets go at these hooks: what it holds then meets what the block holds then. The first is largest at
attention, the second mostly in the MLP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from estimators.activations.tape import ZERO, Moment, Size, Tape, Visit, largest, plus
from estimators.values import replace

Places = Mapping[tuple[str, str], tuple[Moment, ...]]  # by stage and module of a ``Site``


class Visits:
    """The forward that a tape has seen; worked out when somebody asks for a place. ``extra``: beside all of it."""

    __slots__ = ("_extra", "_moments", "_places", "_visits")

    def __init__(self, visits: Sequence[Visit] = (), moments: Sequence[Moment] = (), extra: Size = ZERO) -> None:
        self._visits, self._moments, self._extra = tuple(visits), tuple(moments), extra
        self._places: Places | None = None

    @classmethod
    def of(cls, tape: Tape) -> Visits:
        return cls(tape.visits, tape.moments)

    def beside(self, extra: Size) -> Visits:
        """The same with as much beside it."""
        return self if extra == ZERO else Visits(self._visits, self._moments, plus(self._extra, extra))

    def at(self, stage: str, module: str) -> tuple[Moment, ...]:
        """Of a place; a module that is not known is somewhere in the one around it, and nothing is said of a block."""
        if self._places is None:
            self._places = _places(self._visits, self._moments)
        while (found := self._places.get((stage, module))) is None and module:
            stage, module = "through", module.rpartition(".")[0]
        if self._extra == ZERO or not found:
            return found or ()
        return tuple([replace(m, live=plus(m.live, self._extra)) for m in found])


def _places(visits: Sequence[Visit], moments: Sequence[Moment]) -> Places:
    """Every place. What happens in a module happens inside those around it too."""
    found: dict[tuple[str, str], list[Moment]] = {}
    around: list[str] = []
    stage, last = "behind", Visit("", False, 0, ZERO)
    for visit in (*visits, Visit("", False, len(moments), ZERO)):
        seen = [Moment(last.live), *moments[last.before : visit.before]]
        for place in ((stage, last.module), *(("through", module) for module in around)):
            found.setdefault(place, []).extend(seen)
        if visit.enters:
            found.setdefault(("entering", visit.module), []).append(Moment(visit.live))
            around.append(visit.module)
        elif around:
            around.pop()
        stage, last = "inside" if visit.enters else "behind", visit
    return {place: largest(some) for place, some in found.items()}
