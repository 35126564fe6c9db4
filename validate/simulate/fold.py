"""From a few depths to the full one, where the engine's own order of events allows it.

Equal blocks repeat: the events of a deeper run are those of a shallow one with whole blocks put in between. So each
moment of the shallow run has a counterpart at every depth, counted from the beginning or from the end, and what is
alive at it is linear in the depth. The largest of many linear moments is not linear, which is why moments are folded
and not maxima: the peak of a deep run may stand elsewhere than that of a shallow one.

Two depths give the lines, a third confirms them: a moment counts only when the third depth has it to the byte (where a
block's events look like the root's, some are set beside the wrong ones), and the largest of those that count must be
the third depth's own maximum within ``RESIDUAL``. ZeRO-3
folds where a reduce bucket holds no part of two blocks' gradients (Llama-70B and 405B); where it may not,
as in Llama-8B, it runs whole, like ZeRO-1 and 2 always.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy

from estimators.result import CATEGORIES
from validate.simulate.moments import Composition, Trace

RESIDUAL = 0.002  # of an instant's bytes, at the depth that was held out

Lines = tuple[numpy.ndarray, numpy.ndarray]  # value at zero blocks and slope, of moments x categories


class NotFoldable(Exception):
    """Depths do not line up, or the third one says otherwise."""


@dataclass(frozen=True)
class Depth:
    """One run at one depth."""

    layers: int
    traces: Mapping[str, Trace]


def folded(first: Depth, second: Depth, held_out: Depth, layers: int) -> tuple[dict[str, Composition], float]:
    """Each instant at full depth, and the largest relative error of an instant's bytes at the held-out depth.

    Raises ``NotFoldable`` with the instant that is at fault.
    """
    instants: dict[str, Composition] = {}
    worst = 0.0
    for name in first.traces:
        one, two, three = (run.traces[name] for run in (first, second, held_out))
        try:
            moments = _moments(one, two, three, (first.layers, second.layers, held_out.layers))
        except NotFoldable as reason:
            raise NotFoldable(f"{name}: {reason}") from None
        check, truth = _largest(moments, held_out.layers), three.bytes[three.largest]
        error = abs(_gpu(check) - _gpu(truth)) / max(_gpu(truth), 1)
        if error > RESIDUAL:
            raise NotFoldable(f"{name}: {error:.2%} off at {held_out.layers} blocks")
        worst = max(worst, error)
        instants[name] = Composition.of(_largest(moments, layers))
    return instants, worst


def _moments(one: Trace, two: Trace, three: Trace, depths: tuple[int, int, int]) -> list[Lines]:
    """Lines of the moments that the third depth confirms. Raises ``NotFoldable`` where the depths' events differ."""
    found: list[Lines] = []
    for cut in _cuts(one.tokens, two.tokens):
        if not _lines_up(one.tokens, three.tokens, cut):
            raise NotFoldable("the depths have different events")
        start, slope = _lines(one, two, cut, depths[0], depths[1])
        confirmed = (start + slope * depths[2] == _counterpart(one, three, cut)).all(axis=1)
        if confirmed.any():
            found.append((start[confirmed], slope[confirmed]))
    if not found:
        raise NotFoldable("the depths have different events")
    return found


def _cuts(short: numpy.ndarray, long: numpy.ndarray) -> tuple[int, ...]:
    """Where the further blocks may be put in: as late as possible, and as early as possible.

    A block between the two cuts is counted from the beginning once and from the end once, so that both its places in
    a deep run, behind few blocks and behind many, are among the moments.
    """
    size = min(len(short), len(long))
    differ = numpy.flatnonzero(short[:size] != long[:size])
    late = int(differ[0]) if len(differ) else size
    differ = numpy.flatnonzero(short[::-1][:size] != long[::-1][:size])
    early = len(short) - (int(differ[0]) if len(differ) else size)
    return tuple({early, late}) if early <= late else ()


def _lines_up(short: numpy.ndarray, long: numpy.ndarray, cut: int) -> bool:
    rest = len(short) - cut
    return bool((short[:cut] == long[:cut]).all() and (short[cut:] == long[len(long) - rest :]).all())


def _lines(one: Trace, two: Trace, cut: int, layers: int, more: int) -> Lines:
    """Value at zero blocks and slope of every moment and category."""
    slope = (_counterpart(one, two, cut) - one.bytes) / (more - layers)
    return one.bytes - slope * layers, slope


def _counterpart(short: Trace, long: Trace, cut: int) -> numpy.ndarray:
    """Of every moment of a shallow run the one of a deeper run."""
    rest = len(short.bytes) - cut
    return numpy.concatenate([long.bytes[:cut], long.bytes[len(long.bytes) - rest :]])


def _largest(moments: list[Lines], layers: int) -> numpy.ndarray:
    """Categories at the moment that needs most of the GPU at a depth."""
    rows = [start + slope * layers for start, slope in moments]
    best = [row[row[:, : len(CATEGORIES)].sum(axis=1).argmax()] for row in rows]
    return max(best, key=_gpu)


def _gpu(row: numpy.ndarray) -> float:
    return float(row[: len(CATEGORIES)].sum())
