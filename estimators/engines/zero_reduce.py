"""How stages 1 and 2 collect gradients: a bucket that fills, is reduced, and leaves whole parameters behind.

A replay of stage_1_and_2.py (``reduce_independent_p_g_buckets_and_remove_grads``, ``reduce_ipg_grads``,
``average_tensor``, ``copy_grads_in_partition``) over the sizes of the parameters, in elements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache

from estimators.engines.zero_layout import Layout, Spot, owned, partition, trainable
from estimators.model.spec import ModelSpec
from estimators.sites import END, START
from estimators.values import NamedTuple, dataclass

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
    """One moment of backward: where, elements of gradients, bytes of copies beside them, and how new gradients count.

    ``made``: elements of the gradients of its block that are there by then.
    """

    spot: Spot
    gradients: int
    copies: int = 0  # bytes of the flattened bucket, or of a norm's fp64 copy
    how: str = "late"
    has_bucket: bool = True
    made: int = -1


@dataclass(frozen=True, slots=True)
class Collected:
    """Moments of one backward that can be the largest, in the order of time."""

    backward: tuple[Held, ...]  # at the entry of a gradient hook, and behind it
    reduce: tuple[Held, ...]  # while a bucket is reduced


@lru_cache(maxsize=4096)
def collect(model: ModelSpec, ranks: int, rules: Rules) -> Collected:
    """Of the ranks that can be worst: the one that touches most, and those whose share is reduced early."""
    layout, share = trainable(model, rules.dealt_to), partition(model, ranks, rules.dealt_to)
    early = {0, min(1, ranks - 1), layout.ends[0] // share.share} if rules.at_the_end else {ranks - 1}
    if rules.offload:  # the rank of the embedding copies most of one parameter for its norm
        early.add(0)
    most = max(range(ranks), key=lambda r: share.pieces[r] + share.padding[r])
    found = [_Replay(layout, share.share, rank, rules).run() for rank in {most, *early}]
    backward = {h: None for c in found for h in c.backward}
    return Collected(tuple(backward), tuple({h: None for c in found for h in c.reduce}))


def records(
    moments: Iterable[Held], size: Callable[[Held], tuple[int, bool]], shares: Collection[Spot]
) -> tuple[Held, ...]:
    """Activations shrink as backward goes on: only a moment that holds more than every earlier one can be the largest."""
    kept: list[Held] = []
    most = -1, False
    for held in moments:
        if held.spot[0] == START or held.spot in shares or size(held) > most:
            kept.append(held)
            most = max(most, size(held))
    return tuple(kept)


def _how(made: int) -> str:
    """How a gradient counts that a hook gets: by the clock of its block, where that is known."""
    return "arrives" if made >= 0 else "late"


def _held(moment: Held) -> tuple[int, bool]:
    return moment.gradients, moment.has_bucket


def rising(moments: Iterable[Held], shares: Collection[Spot]) -> tuple[Held, ...]:
    """As ``records``, of blocks that are as far with their backward; and where gradients of what a stack shares come to
    them (``Layout.shares``)."""
    kept: list[Held] = []
    most: dict[tuple[int, str, int], int] = {}
    for held in moments:
        key = held.spot[0], held.how, held.made
        if held.spot[0] == START or held.spot in shares or held.gradients > most.get(key, -1):
            most[key] = held.gradients
            kept.append(held)
    return tuple(kept)


class _Replay:
    """One rank's backward. The loop over parameters is one function with plain names: it runs for each of hundreds of
    parameters on several ranks, in every answer."""

    def __init__(self, layout: Layout, share: int, rank: int, rules: Rules) -> None:
        self.layout, self.share, self.rank, self.rules = layout, share, rank, rules
        self.first, self.last = owned(layout, share, rank)

    def run(self) -> Collected:
        rules, layout = self.rules, self.layout
        sizes, spots, limit, element = layout.sizes, layout.spots, rules.bucket, rules.element
        first, last, loaded, at_the_end = self.first, self.last, rules.loaded, rules.at_the_end
        buffered, offload = rules.contiguous, rules.offload
        whole = layout.ends[last - 1] - (layout.ends[first - 1] if first else 0) if last > first else 0
        stays_if_mine, stays_if_not = rules.compact or not buffered, rules.keeps_others
        takes_pieces = rules.pieces and buffered
        half = -1 if at_the_end else layout.tied
        waiting = sizes[layout.tied] if layout.tied >= 0 else 0

        alive = layout.numel if loaded else 0  # elements of gradients that stand outside the bucket and the pieces
        pieces = elements = 0
        bucket: list[int] = []
        pending: list[int] = []  # in the bucket's list, but not in its buffer
        spot: Spot = (START, 0)
        backward: dict[tuple[Spot, str, int], int] = {}  # the most gradients at each moment, in the order of time
        entered: list[Held] = []  # what is there when a block begins, before the first gradient of its own
        reduce: dict[tuple[Spot, int], tuple[int, int, int]] = {}  # bytes, then gradients and copies
        made = -1 if at_the_end else sizes[half] if half >= 0 else 0  # of this block; the half is the head's

        def moment(copies: int) -> None:
            size, now = (alive + pieces) * element + copies, (spot, made)
            if size > reduce.get(now, (0,))[0]:
                reduce[now] = size, alive + pieces, copies

        if half >= 0:
            alive += sizes[half]
        if at_the_end:
            backward[spot, "late", made] = alive + waiting * (3 if rules.accumulates else layout.summed)
        order = layout.order if at_the_end else reversed(layout.executed)
        for index in (*order, -1):  # behind the last one the bucket is reduced once more
            most = -1
            if index < 0:
                spot, made = (START, 0), -1
            else:
                numel = sizes[index]
                if not at_the_end:
                    if spots[index] != spot and spots[index][0] not in (START, END):
                        entered.append(Held(spots[index], alive + pieces, 0, "early", bool(backward)))
                    if spots[index] != spot and spots[index][0] != END:
                        made = 0 if spots[index][0] != START else -1
                    spot = spots[index]
                    made += numel if made >= 0 else 0
                if index == half:  # autograd adds two halves: three tensors
                    most = alive + pieces + layout.summed * numel
                if not loaded:
                    alive += numel if index != half else 0
                elif index == half:
                    alive -= numel
                if alive + pieces > most:
                    most = alive + pieces
            if bucket and (index < 0 or elements + numel > limit):
                mine = [i for i in bucket if first <= i < last]
                # _add_to_grad_partition_buffer
                added = 4 * max(map(self._slice, mine)) if rules.compact and mine else 0
                moment(self._flattened(bucket, elements) * element + added)
                if mine and takes_pieces and not pieces:
                    pieces = whole
                    moment(0)
                if mine and offload:
                    moment(NORM_BYTES * max(map(self._slice, mine)))
                for i in pending:
                    if offload or not (stays_if_mine if first <= i < last else stays_if_not):
                        alive -= sizes[i]
                bucket, pending, elements = [], [], 0
                if alive + pieces > most:
                    most = alive + pieces
            if index >= 0:
                if numel > limit or not buffered:
                    pending.append(index)
                    if offload:  # an oversized gradient is cloned
                        most = max(most, alive + pieces + numel)
                else:
                    alive -= numel
                elements += numel
                bucket.append(index)
            arrival = spot, _how(made), made
            if most > backward.get(arrival, -1):
                backward[arrival] = most
            if made >= 0:
                backward[spot, "between", made] = alive + pieces
        before = Held((END, 0), self._at_start(), 0, "early", False)
        behind = (Held(spot, size, 0, how, True, made) for (spot, how, made), size in backward.items())
        reduced = (
            Held(spot, held, copies, _how(made), True, made) for (spot, made), (_, held, copies) in reduce.items()
        )
        return Collected(
            (
                *records(entered, _held, layout.shares),
                *records([before, *self._piling_up()], _held, layout.shares),
                *rising(behind, layout.shares),
            ),
            records(reduced, lambda h: (h.gradients * element + h.copies, True), layout.shares),
        )

    def _at_start(self) -> int:
        """Gradients of earlier micro-steps that stand beside the parameters."""
        return self.layout.numel if self.rules.loaded and self.rules.accumulates else 0

    def _piling_up(self) -> Iterator[Held]:
        """Stage 1 without overlap: whole gradients behind the block that works, one more with each; the hook of the first
        makes the bucket (``process_gradients``), which the rest of its block meets."""
        if not self.rules.at_the_end:
            return
        if self.rules.accumulates:
            yield Held((END, 0), self.layout.numel, 0, "fresh", True)
            return
        sizes, spots, tied = self.layout.sizes, self.layout.spots, self.layout.tied
        half = sizes[tied] if tied >= 0 else 0  # of a tied gradient: waits in autograd behind the head
        done, seen, first = 0, (-2, 0), (-2, 0)
        for index in reversed(self.layout.executed):
            spot = spots[index]
            if spot != seen and spot[0] != START:
                yield Held(spot, done + (half if spot[0] != END else 0), 0, "made", done > 0)
                first = first if done else spot
            seen, done = spot, done + sizes[index]
            if spot == first and spot[0] != END:
                yield Held(spot, done + half, 0, "between", True, done)

    def _slice(self, index: int) -> int:
        end = self.layout.ends[index]
        start = end - self.layout.sizes[index]
        return min(end, (self.rank + 1) * self.share) - max(start, self.rank * self.share)

    def _flattened(self, bucket: list[int], elements: int) -> int:
        """Elements that ``allreduce_bucket`` copies into one tensor: none when a single slice is reduced."""
        if not self.rules.contiguous:
            return elements if len(bucket) > 1 else 0
        if not self.rules.scatter:
            return 0
        ends, sizes = self.layout.ends, self.layout.sizes
        if not self.rules.compact:
            first, last = min(bucket), max(bucket)
            if (ends[first] - sizes[first]) // self.share == (ends[last] - 1) // self.share:
                return 0
            if elements <= self.rules.bucket:
                return elements
        # rank and elements; neighbours of one rank merge unless a flat buffer takes them
        slices: list[tuple[int, int]] = []
        for index in bucket:
            end = ends[index]
            start = end - sizes[index]
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
