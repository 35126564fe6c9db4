"""Which parameters ZeRO-3 has gathered at each moment of a micro-step.

A replay of the coordinator (``zero_coordinator``) over the modules of a model (``zero_modules``), in elements. It does
not depend on the number of ranks and runs once per model and setting; blocks that find the same state before them are
replayed once (``zero_fold``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from estimators.engines.zero_coordinator import Coordinator, Live, Setting, When
from estimators.engines.zero_fold import replay
from estimators.engines.zero_layout import AFTER, BETWEEN, Spot
from estimators.engines.zero_modules import modules
from estimators.model.spec import ModelSpec
from estimators.sites import END, START
from estimators.values import dataclass

Found = tuple[Spot, When, Live]


@dataclass(frozen=True, slots=True)
class Fetched:
    """Moments of a micro-step."""

    persistent: tuple[int, ...]  # elements of each parameter that stays gathered
    forward: tuple[Found, ...]  # at each place that can be the largest, in the order of time
    loss: Live  # after the last module of forward
    backward: tuple[Found, ...]
    reduce: tuple[Found, ...]


@lru_cache(maxsize=1024)
def fetched(model: ModelSpec, setting: Setting, folded: bool = True) -> Fetched:
    """What is gathered, at the largest moment of each phase. ``folded``: equal blocks are replayed once."""
    state = Coordinator(modules(model, setting.recompute, folded), setting)
    loss = replay(state)
    kept = tuple(state.net.numels[i] for i in sorted(state.persist))
    best = state.best
    forward = [(spot, _of_modules(here)) for spot, here in reversed(best["forward"].items())]
    ahead = tuple(reversed(rising(forward)))
    back = rising((spot, _of_modules(here)) for spot, here in best["backward"].items())
    return Fetched(kept, ahead, loss, back, rising(best["reduce"].items()))


def _of_modules(here: Mapping[When, Live]) -> Mapping[When, Live]:
    """Moments of a block without those at the entrance of a module inside which as much is gathered."""
    inside = {when.module: live.size for when, live in here.items() if when.stage in ("inside", "through")}
    return {w: live for w, live in here.items() if w.stage != "entering" or live.size > inside.get(w.module, -1)}


def rising(places: Iterable[tuple[Spot, Mapping[When, Live]]]) -> tuple[Found, ...]:
    """Where activations shrink from block to block, only a moment that exceeds all before it can be the largest."""
    kept: list[Found] = []
    most: dict[When, int] = {}
    for spot, here in places:
        apart = spot[0] in (START, END) or spot[1] in (AFTER, BETWEEN)  # less or more of the network than in a block
        for when, live in here.items():
            if apart or live.size > most.get(when, -1):
                kept.append((spot, when, live))
                if not apart:
                    most[when] = live.size
    return tuple(kept)
