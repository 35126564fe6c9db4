"""How far a long answer is, for whoever wants to know: silent unless somebody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Told = Callable[[int, int], None]  # done, of how many
Thing = TypeVar("Thing")

_WATCHER: ContextVar[Told | None] = ContextVar("watcher", default=None)


def watched(things: Sequence[Thing]) -> Iterator[Thing]:
    """The things, one by one; who watches is told before each and when all are done."""
    told = _WATCHER.get()
    for number, thing in enumerate(things):
        if told:
            told(number, len(things))
        yield thing
    if told:
        told(len(things), len(things))


def in_steps(*steps: Callable[[], Thing]) -> list[Thing]:
    """What each step gives, one after the other; who watches is told before each and when all are done."""
    return [step() for step in watched(steps)]


@contextmanager
def watching(told: Told) -> Iterator[None]:
    """``told`` hears of everything that is ``watched`` inside, in this thread."""
    before = _WATCHER.set(told)
    try:
        yield
    finally:
        _WATCHER.reset(before)
