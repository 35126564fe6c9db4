"""A block's backward, cut where a gradient of one of its weights is complete.

An engine acts when a gradient arrives: what it holds then meets what the block holds then, not the block's largest
moment. The bytes of gradients made so far are the clock that both share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from estimators.activations.tape import Moment, Size, largest
from estimators.values import NamedTuple, replace


class Step(NamedTuple):
    """From one gradient to the next: what is alive when it is complete, and the largest moments from then on.

    ``rest``: gradients that are being made (``Moment.in_hand``) are beside what the engine holds.
    """

    arrival: tuple[Moment, ...]
    rest: tuple[Moment, ...]


Steps = Mapping[int, Step]  # by bytes of gradients made


def steps_of(moments: Sequence[Moment]) -> Steps:
    """The steps of one backward."""
    found: dict[int, tuple[list[Moment], list[Moment]]] = {}
    for moment in moments:
        arrival, rest = found.setdefault(moment.weight_gradients, ([], []))
        if moment.fresh_gradient:
            arrival.append(Moment(moment.live))
        rest.append(Moment(moment.live, in_hand=moment.in_hand))
    return {made: Step(largest(arrival), largest(rest)) for made, (arrival, rest) in found.items()}


def above(steps: Steps, base: Size) -> Steps:
    """The steps with ``base`` beside them."""
    return {
        made: Step(*(tuple([replace(m, live=tuple(map(int.__add__, m.live, base))) for m in ms]) for ms in step))
        for made, step in steps.items()
    }
