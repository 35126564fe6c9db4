"""Reading a ledger: at the largest moment of each instant, bytes by category, by place and by site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import numpy

from estimators.result import CATEGORIES
from validate.census import Block
from validate.simulate.categories import Categories
from validate.simulate.ledger import REDUCE, Ledger

# Piece of an instant -> the phase it is looked for in; ``reduce`` is what the engine marks inside backward. Loading is
# two loops over the blocks, which fold one by one.
PHASES: Mapping[str, str] = {
    "build": "build", "start": "start",
    "forward": "forward", "loss": "loss", "backward": "backward", "reduce": "backward", "step": "step",
}  # fmt: skip
SITES = 20  # allocation sites that a composition lists
_WIDTH = 2 * len(CATEGORIES)  # the GPU's categories, then the host's


@dataclass(frozen=True)
class Composition:
    """What is alive at one moment: bytes by category on the GPU and on the host, and by site, largest first."""

    gpu: Mapping[str, int]
    host: Mapping[str, int] = field(default_factory=dict)
    sites: tuple[tuple[str, str, int], ...] = field(default=(), compare=False, repr=False)  # category, site, bytes

    @property
    def total(self) -> int:
        return sum(self.gpu.values())

    @classmethod
    def of(cls, row: numpy.ndarray, sites: tuple[tuple[str, str, int], ...] = ()) -> Composition:
        half = len(CATEGORIES)
        values = numpy.rint(row).astype(int).tolist()
        return cls(
            {name: v for name, v in zip(CATEGORIES, values[:half], strict=True) if v},
            {name: v for name, v in zip(CATEGORIES, values[half:], strict=True) if v},
            sites,
        )


@dataclass(frozen=True)
class Trace:
    """The moments of one instant in order: what each event was, and all categories after it."""

    tokens: numpy.ndarray  # equal numbers are equal events: category, site, made or freed
    bytes: numpy.ndarray  # moments x (categories on the GPU, categories on the host)
    events: numpy.ndarray  # the ledger's event behind each moment

    @property
    def largest(self) -> int:
        """The moment that needs most of the GPU."""
        return int(self.bytes[:, : len(CATEGORIES)].sum(axis=1).argmax())


def traces(ledger: Ledger, categories: Categories) -> dict[str, Trace]:
    """Each instant's moments, in one pass over the events."""
    windows = {instant: ledger.window(phase) for instant, phase in PHASES.items()}
    rows, tokens, regions = _replayed(ledger, categories)
    found: dict[str, Trace] = {}
    for instant, (first, last) in windows.items():
        chosen = numpy.arange(first, last)
        if instant in ("backward", "reduce"):
            inside = regions[first:last]
            chosen = chosen[inside if instant == "reduce" else ~inside]
            if not len(chosen):  # nothing to reduce with: the end of backward
                chosen = numpy.array([last - 1])
        # behind what is only let go nothing is at its largest; autocast empties its cache in the order of addresses
        rises = [not at or ledger.events[event][1] >= 0 for at, event in enumerate(chosen)]
        chosen = chosen[rises]
        found[instant] = Trace(tokens[chosen], rows[chosen], chosen)
    return found


def _replayed(ledger: Ledger, categories: Categories) -> tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]:
    places = {name: at for at, name in enumerate(CATEGORIES)}
    changes = numpy.zeros((len(ledger.events), _WIDTH), dtype=numpy.int64)
    tokens = numpy.zeros(len(ledger.events), dtype=numpy.int64)
    regions = numpy.zeros(len(ledger.events), dtype=bool)
    for at, (phase, block, change, region) in enumerate(_with_phase(ledger)):
        regions[at] = region == REDUCE
        if not change:
            continue
        category = categories(block, phase)
        on_host = ledger.is_on_host(block)
        changes[at, places[category] + (len(CATEGORIES) if on_host else 0)] = change
        tokens[at] = hash((category, block.site, change > 0, on_host))
    return changes.cumsum(axis=0), tokens, regions


def _with_phase(ledger: Ledger) -> Iterator[tuple[str, Block, int, str]]:
    """Each event with the phase in which its storage was made."""
    starts = [*ledger.starts, ("", len(ledger.events))]
    at, born = 0, dict[Block, str]()
    for index, (block, change, region) in enumerate(ledger.events):
        while index >= starts[at + 1][1]:
            at += 1
        yield born.setdefault(block, starts[at][0]), block, change, region


def largest_moments(ledger: Ledger, categories: Categories, found: Mapping[str, Trace]) -> dict[str, Composition]:
    """What is alive at the largest moment of each of the contract's instants, with its sites."""
    return instants_of(
        {
            name: Composition.of(t.bytes[t.largest], sites_at(ledger, categories, int(t.events[t.largest])))
            for name, t in found.items()
        }
    )


def instants_of(pieces: Mapping[str, Composition]) -> dict[str, Composition]:
    """The contract's instants: loading is the larger of its two pieces."""
    loaded = max((pieces["build"], pieces["start"]), key=lambda piece: piece.total)
    return {"load": loaded, **{name: piece for name, piece in pieces.items() if name not in ("build", "start")}}


def sites_at(ledger: Ledger, categories: Categories, event: int) -> tuple[tuple[str, str, int], ...]:
    """Category, site and bytes of everything on the GPU after an event, largest first."""
    found: Counter[tuple[str, str]] = Counter()
    for phase, block, change, _ in islice(_with_phase(ledger), event + 1):
        if change and not ledger.is_on_host(block):
            found[categories(block, phase), block.site] += change
    return tuple((*key, size) for key, size in found.most_common(SITES) if size)
