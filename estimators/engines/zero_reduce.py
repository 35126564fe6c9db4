"""How stages 1 and 2 collect gradients: a bucket that fills, is reduced, and leaves whole parameters behind.

A replay of stage_1_and_2.py (``reduce_independent_p_g_buckets_and_remove_grads``, ``reduce_ipg_grads``,
``average_tensor``, ``copy_grads_in_partition``) over the sizes of the parameters, in elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from estimators.engines.zero_layout import Layout, Spot, owned, partition, trainable
from estimators.model.spec import ModelSpec
from estimators.sites import END, START
from estimators.values import NamedTuple, dataclass, field

NORM_BYTES = 8  # gradients are squared in fp64 (zero/utils.py, get_norm_dtype)


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides the replay.

    ``loaded``: every gradient is there before the first is reduced (stage 1 without overlap, or accumulating).
    ``at_the_end``: they are reduced after backward, in the order of the parameters. ``keeps_others``: gradients of
    other ranks stay until the end (stage 1). ``pieces``: gradients of the rank's own share are copied
    into one buffer of whole parameters; without it they go to the host or into a flat buffer.
    """

    bucket: int
    element: int  # bytes of one gradient element in the bucket
    contiguous: bool = True
    scatter: bool = True
    loaded: bool = False
    at_the_end: bool = False
    accumulates: bool = False
    keeps_others: bool = False
    pieces: bool = True
    compact: bool = False  # own gradients are added into a flat fp32 buffer
    dealt_to: int = 1  # ranks that parameters are dealt to in turn
    offload: bool = False  # own gradients are copied to the host


class Held(NamedTuple):
    """One moment of backward: where, elements of gradients, bytes of copies beside them, and how new gradients count."""

    spot: Spot
    gradients: int
    copies: int = 0  # bytes of the flattened bucket, or of a norm's fp64 copy
    how: str = "late"
    has_bucket: bool = True


@dataclass(frozen=True, slots=True)
class Collected:
    """Moments of one backward that can be the largest, in the order of time."""

    backward: tuple[Held, ...]  # at the entry of a gradient hook
    reduce: tuple[Held, ...]  # while a bucket is reduced


@lru_cache(maxsize=4096)
def collect(model: ModelSpec, ranks: int, rules: Rules) -> Collected:
    """Of the ranks that can be worst: the one that touches most, and those whose share is reduced early."""
    layout, share = trainable(model, rules.dealt_to), partition(model, ranks, rules.dealt_to)
    early = {0, min(1, ranks - 1), layout.ends[0] // share.share} if rules.at_the_end else {ranks - 1}
    most = max(range(ranks), key=lambda r: share.pieces[r] + share.padding[r])
    found = [_Replay(layout, share.share, rank, rules).run() for rank in {most, *early}]
    backward = {h: None for c in found for h in c.backward}
    return Collected(tuple(backward), tuple({h: None for c in found for h in c.reduce}))


def records(moments: Iterable[Held], size: Callable[[Held], int]) -> tuple[Held, ...]:
    """Activations shrink as backward goes on: only a moment that holds more than every earlier one can be the largest."""
    kept: list[Held] = []
    for held in moments:
        if not kept or held.spot[0] == START or size(held) > size(kept[-1]):
            kept.append(held)
    return tuple(kept)


@dataclass
class _Replay:
    layout: Layout
    share: int
    rank: int
    rules: Rules
    alive: int = 0  # elements of gradients that stand outside the bucket and the pieces
    pieces: int = 0
    elements: int = 0
    bucket: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)  # in the bucket's list, but not in its buffer
    spot: Spot = (START, 0)
    backward: dict[Spot, int] = field(default_factory=dict)  # the most gradients at each place, in the order of time
    reduce: dict[Spot, tuple[int, int]] = field(default_factory=dict)

    def run(self) -> Collected:
        sizes, rules = self.layout.sizes, self.rules
        self.first, self.last = owned(self.layout, self.share, self.rank)
        order = self.layout.order if rules.at_the_end else reversed(self.layout.executed)
        half = -1 if rules.at_the_end else self.layout.tied
        waiting = sizes[self.layout.tied] if self.layout.tied >= 0 else 0
        if rules.loaded:
            self.alive = self.layout.numel
        if half >= 0:
            self.alive += sizes[half]
        if rules.at_the_end:
            self._see(self.alive + waiting * (3 if rules.accumulates else 2))
        for index in order:
            numel = sizes[index]
            self.spot = self.spot if rules.at_the_end else self.layout.spots[index]
            if index == half:  # autograd adds two halves: three tensors
                self._see(self.alive + self.pieces + 2 * numel)
            if not rules.loaded:
                self.alive += numel if index != half else 0
            elif index == half:
                self.alive -= numel
            self._see(self.alive + self.pieces)
            if self.elements + numel > rules.bucket:
                self._flush()
            if numel > rules.bucket or not rules.contiguous:
                self.pending.append(index)
                if rules.offload:  # an oversized gradient is cloned
                    self._see(self.alive + self.pieces + numel)
            else:
                self.alive -= numel
            self.elements += numel
            self.bucket.append(index)
        self._flush()
        element = rules.element
        before = Held((END, 0), self._at_start(), 0, "early", False)
        backward = [before, *self._piling_up(), *(Held(spot, size) for spot, size in self.backward.items())]
        reduce = (Held(spot, size, copies) for spot, (size, copies) in self.reduce.items())
        return Collected(
            records(backward, lambda h: h.gradients), records(reduce, lambda h: h.gradients * element + h.copies)
        )

    def _at_start(self) -> int:
        """Gradients of earlier micro-steps that stand beside the parameters."""
        return self.layout.numel if self.rules.loaded and self.rules.accumulates else 0

    def _piling_up(self) -> Iterator[Held]:
        """Stage 1 without overlap: whole gradients behind the block that works, one more with each."""
        if not self.rules.at_the_end:
            return
        if self.rules.accumulates:
            yield Held((END, 0), self.layout.numel, 0, "fresh", True)
            return
        done, seen = 0, (-2, 0)
        for index in reversed(self.layout.executed):
            spot = self.layout.spots[index]
            if spot != seen and spot[0] != START:
                yield Held(spot, done, 0, "made", False)
            seen, done = spot, done + self.layout.sizes[index]

    def _see(self, elements: int) -> None:
        if elements > self.backward.get(self.spot, -1):
            self.backward[self.spot] = elements

    def _flush(self) -> None:
        if not self.bucket:
            return
        rules, sizes = self.rules, self.layout.sizes
        mine = [i for i in self.bucket if self.first <= i < self.last]
        added = 4 * max(map(self._slice, mine)) if rules.compact and mine else 0  # _add_to_grad_partition_buffer
        self._moment(self._flattened() * rules.element + added)
        if mine and rules.pieces and rules.contiguous and not self.pieces:
            self.pieces = self.layout.ends[self.last - 1] - (self.layout.ends[self.first - 1] if self.first else 0)
            self._moment(0)
        if mine and rules.offload:
            self._moment(NORM_BYTES * max(self._slice(i) for i in mine))
        stays_if_mine, stays_if_not = rules.compact or not rules.contiguous, rules.keeps_others
        for index in self.pending:
            stays = stays_if_mine if self.first <= index < self.last else stays_if_not
            if not stays or rules.offload:
                self.alive -= sizes[index]
        self.bucket, self.pending, self.elements = [], [], 0
        self._see(self.alive + self.pieces)

    def _moment(self, copies: int) -> None:
        held, element = self.alive + self.pieces, self.rules.element
        best = self.reduce.get(self.spot, (0, 0))
        if held * element + copies > best[0] * element + best[1]:
            self.reduce[self.spot] = (held, copies)

    def _slice(self, index: int) -> int:
        end = self.layout.ends[index]
        start = end - self.layout.sizes[index]
        return min(end, (self.rank + 1) * self.share) - max(start, self.rank * self.share)

    def _flattened(self) -> int:
        """Elements that ``allreduce_bucket`` copies into one tensor: none when a single slice is reduced."""
        if not self.rules.contiguous:
            return self.elements if len(self.bucket) > 1 else 0
        if not self.rules.scatter:
            return 0
        ends, sizes = self.layout.ends, self.layout.sizes
        if not self.rules.compact:
            first, last = min(self.bucket), max(self.bucket)
            if (ends[first] - sizes[first]) // self.share == (ends[last] - 1) // self.share:
                return 0
            if self.elements <= self.rules.bucket:
                return self.elements
        # rank and elements; neighbours of one rank merge unless a flat buffer takes them
        slices: list[tuple[int, int]] = []
        for index in self.bucket:
            end = self.layout.ends[index]
            start = end - self.layout.sizes[index]
            while start < end:
                rank = start // self.share
                stop = min(end, (rank + 1) * self.share)
                if slices and slices[-1][0] == rank and not (self.rules.compact and rank == self.rank):
                    slices[-1] = (rank, slices[-1][1] + stop - start)
                else:
                    slices.append((rank, stop - start))
                start = stop
        return _largest_group(slices, self.rules.bucket)


def _largest_group(slices: list[tuple[int, int]], limit: int) -> int:
    """``allreduce_and_scatter`` reduces slices in groups that close when they exceed the bucket size."""
    largest = numel = count = 0
    for _, size in slices:
        numel, count = numel + size, count + 1
        if numel > limit:
            largest = max(largest, numel if count > 1 else 0)
            numel = count = 0
    return max(largest, numel if count > 1 else 0)
