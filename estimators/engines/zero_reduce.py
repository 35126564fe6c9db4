"""How stages 1 and 2 collect gradients: a bucket that fills, is reduced, and leaves whole parameters behind.

A replay of stage_1_and_2.py (``reduce_independent_p_g_buckets_and_remove_grads``, ``reduce_ipg_grads``,
``average_tensor``, ``copy_grads_in_partition``) over the sizes of the parameters, in elements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from estimators.engines.zero_layout import Layout, owned, partition, trainable
from estimators.model.spec import ModelSpec

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


@dataclass(frozen=True, slots=True)
class Collected:
    """Largest moments of one backward, in elements of gradients held, and bytes of copies beside them."""

    backward: int  # at the entry of a gradient hook
    reduce: int  # while a bucket is reduced
    copies: int  # bytes of the flattened bucket, or of a norm's fp64 copy, at that moment


@lru_cache(maxsize=4096)
def collect(model: ModelSpec, ranks: int, rules: Rules) -> Collected:
    """The worst of the ranks that can be worst: the one that touches most, and those whose share is reduced early."""
    layout, share = trainable(model, rules.dealt_to), partition(model, ranks, rules.dealt_to)
    early = {0, min(1, ranks - 1), layout.ends[0] // share.share} if rules.at_the_end else {ranks - 1}
    most = max(range(ranks), key=lambda r: share.pieces[r] + share.padding[r])
    found = [_Replay(layout, share.share, rank, rules).run() for rank in {most, *early}]
    busiest = max(found, key=lambda c: c.reduce * rules.element + c.copies)
    return Collected(max(c.backward for c in found), busiest.reduce, busiest.copies)


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
    backward: int = 0
    reduce: int = 0
    copies: int = 0

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
        self.backward = self.alive + (waiting * (3 if rules.accumulates else 2) if rules.at_the_end else 0)
        for index in order:
            numel = sizes[index]
            if index == half:  # autograd adds two halves: three tensors
                self.backward = max(self.backward, self.alive + self.pieces + 2 * numel)
            if not rules.loaded:
                self.alive += numel if index != half else 0
                self.backward = max(self.backward, self.alive + self.pieces)
            elif index == half:
                self.alive -= numel
            if self.elements + numel > rules.bucket:
                self._flush()
            if numel > rules.bucket or not rules.contiguous:
                self.pending.append(index)
                if rules.offload:  # an oversized gradient is cloned
                    self.backward = max(self.backward, self.alive + self.pieces + numel)
            else:
                self.alive -= numel
            self.elements += numel
            self.bucket.append(index)
        self._flush()
        return Collected(self.backward, self.reduce, self.copies)

    def _flush(self) -> None:
        if not self.bucket:
            return
        rules, sizes = self.rules, self.layout.sizes
        mine = [i for i in self.bucket if self.first <= i < self.last]
        added = (
            4 * max((self._slice(i) for i in mine), default=0) if rules.compact else 0
        )  # _add_to_grad_partition_buffer
        self._moment(self._flattened() * rules.element + added)
        if mine and rules.pieces and rules.contiguous and not self.pieces:
            self.pieces = self.layout.ends[self.last - 1] - (self.layout.ends[self.first - 1] if self.first else 0)
            self._moment(0)
        if mine and rules.offload:
            self._moment(NORM_BYTES * max(self._slice(i) for i in mine))
        for index in self.pending:
            is_mine = self.first <= index < self.last
            stays = (is_mine and (rules.compact or not rules.contiguous)) if is_mine else rules.keeps_others
            self.alive -= 0 if stays and not rules.offload else sizes[index]
        self.bucket, self.pending, self.elements = [], [], 0
        self.backward = max(self.backward, self.alive + self.pieces)

    def _moment(self, copies: int) -> None:
        held = self.alive + self.pieces
        if held * self.rules.element + copies > self.reduce * self.rules.element + self.copies:
            self.reduce, self.copies = held, copies

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
        if self.elements <= self.rules.bucket and not self.rules.compact:
            low = min(ends[i] - sizes[i] for i in self.bucket)
            high = max(ends[i] for i in self.bucket)
            return self.elements if low // self.share != (high - 1) // self.share else 0
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
