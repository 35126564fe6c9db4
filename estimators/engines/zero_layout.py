"""Sizes that DeepSpeed's stages read off a model: flat groups, partitions, and the order in which parameters run.

Everything here is in elements and is cached by model and small numbers, so that it is computed once for a sweep.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import lru_cache
from itertools import accumulate

from estimators.engines.sharding.order import used_order
from estimators.model.spec import ModelSpec, Part
from estimators.result import Term
from estimators.run import Run
from estimators.sites import END, START
from estimators.units import ceil_div, round_up
from estimators.values import dataclass

ALIGNMENT = 2  # nccl_start_alignment_factor: a flat group is padded to a multiple of it times the ranks

Spot = tuple[int, int]  # run of blocks and piece of it; START or END outside them: the part and index of a ``Site``
AFTER = 1 << 20  # as piece: what stands behind a run of blocks, before the next or the head
BETWEEN = -1  # as piece, in backward: what stands in front of a run of blocks, behind another


def spots_of(model: ModelSpec) -> list[tuple[Part, Spot]]:
    """Every part with its place; root parameters between two runs of blocks stand with the run behind them."""
    blocks = [at for at, part in enumerate(model.parts) if part.is_block]
    found: list[tuple[Part, Spot]] = []
    number = -1
    for at, part in enumerate(model.parts):
        if model.words_first and at == model.executed[0]:
            found.append((part, (START, 0)))
            continue
        if part.is_block:
            number += 1
            found.append((part, (number, 0)))
        elif not blocks or at < blocks[0]:
            found.append((part, (START, 0)))
        else:
            found.append((part, (END, 0) if at > blocks[-1] else (number + 1, BETWEEN)))
    return found


@dataclass(frozen=True, eq=False)
class Layout:
    """Trainable parameters: sizes in the order of the flat group, and their indices in other orders."""

    sizes: tuple[int, ...]
    ends: tuple[int, ...]  # running sums of sizes
    executed: tuple[int, ...]
    order: tuple[int, ...] = ()  # in the order of ``module.parameters()``
    spots: tuple[Spot, ...] = ()  # where each stands in the network
    tied: int = -1  # of the embedding that a head shares: half of its gradient waits in autograd through backward
    shares: frozenset[Spot] = frozenset()  # blocks at which gradients of what a stack shares stand for the first time
    summed: int = (
        2  # tensors beside that half as the last part arrives: itself, and the sum unless a stack's words made one
    )

    @property
    def numel(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def largest(self) -> int:
        return max(self.sizes, default=0)


@lru_cache(maxsize=256)
def trainable(model: ModelSpec, dealt_to: int = 1) -> Layout:
    """The flat group that the optimizer is given: all parameters that train, one group.

    ``dealt_to``: round_robin_gradients deals them to so many ranks in turn (``_round_robin_reorder``).
    """
    if dealt_to > 1:
        return _dealt(trainable(model), dealt_to)
    sizes: list[int] = []
    executed: list[list[int]] = []  # of each part
    tied, shared = -1, set(model.tied.values())
    spots: list[Spot] = []
    for part, spot in spots_of(model):
        here = [p.numel for p in part.parameters if p.trainable]
        place = {i: n for n, i in enumerate(i for i, p in enumerate(part.parameters) if p.trainable)}
        order = [place[i] for i in used_order(part) if i in place]
        tied = next((len(sizes) + place[i] for i in place if part.parameters[i].name in shared), tied)
        executed.append([])
        for index in range(part.count):
            executed[-1].extend(len(sizes) + i for i in order)
            sizes.extend(here)
            spots.extend([(spot[0], index) if part.is_block else spot] * len(here))
    numbers = tuple(range(len(sizes)))
    runs = tuple(i for at in model.executed for i in executed[at])
    stacks = {"encoder", "decoder"} <= {part.role for part in model.blocks}
    shares = frozenset(
        (number, part.count - 2) for number, part in enumerate(model.blocks) if stacks and part.count > 1
    )
    everywhere = (tuple(sizes), tuple(accumulate(sizes)), runs, numbers, tuple(spots))
    return Layout(*everywhere, tied, shares, 1 if stacks else 2)


def _dealt(layout: Layout, ranks: int) -> Layout:
    before = [i for rank in range(ranks) for i in range(rank, len(layout.sizes), ranks)]
    sizes = [layout.sizes[i] for i in before]
    now = {old: new for new, old in enumerate(before)}
    return Layout(
        tuple(sizes),
        tuple(accumulate(sizes)),
        tuple(now[i] for i in layout.executed),
        tuple(now[i] for i in layout.order),
        tuple(layout.spots[i] for i in before),
        now.get(layout.tied, -1),
        layout.shares,
        layout.summed,
    )


@dataclass(frozen=True, eq=False)
class Partition:
    """A flat group cut into equal shares: elements with padding, of one share, and what each rank's share touches."""

    aligned: int
    share: int
    pieces: tuple[int, ...]  # elements of all parameters that a rank's share touches, whole
    padding: tuple[int, ...]  # elements of a rank's share behind the last parameter
    touched: tuple[int, ...]  # how many parameters a rank's share touches


@lru_cache(maxsize=1024)
def partition(model: ModelSpec, ranks: int, dealt_to: int = 1) -> Partition:
    """ZeRO-1/2, formula P.6 (stage_1_and_2.py, ``get_data_parallel_partitions``, ``get_partition_info``)."""
    layout = trainable(model, dealt_to)
    aligned = round_up(layout.numel, ALIGNMENT * ranks)
    share = aligned // ranks
    pieces, padding, touched = [], [], []
    for rank in range(ranks):
        first, last = owned(layout, share, rank)
        begin = layout.ends[first - 1] if first else 0
        pieces.append(layout.ends[last - 1] - begin if last > first else 0)
        padding.append(max(0, min(share, (rank + 1) * share - layout.numel)))
        touched.append(last - first)
    return Partition(aligned, share, tuple(pieces), tuple(padding), tuple(touched))


def owned(layout: Layout, share: int, rank: int) -> tuple[int, int]:
    """First and behind-last index of the parameters that a rank's share touches."""
    start, end = rank * share, min((rank + 1) * share, layout.numel)
    if start >= end:
        return 0, 0
    return bisect_right(layout.ends, start), bisect_left(layout.ends, end) + 1


@lru_cache(maxsize=1024)
def shards(model: ModelSpec, ranks: int) -> tuple[int, int]:
    """ZeRO-3: elements of a rank's shards, each parameter padded to the ranks (trainable, frozen); formula P.7.

    partition_parameters.py, ``_partition_param``: ``ds_numel`` rounded up to the ranks, cut.
    """
    found = {True: 0, False: 0}
    for part in model.parts:
        for p in part.parameters:
            found[p.trainable] += part.count * ceil_div(p.numel, ranks)
    return found[True], found[False]


def frozen_bytes(run: Run) -> int:
    """Stored bytes of the parameters that do not train, quantised storage included."""
    return sum(
        part.count * sum(run.bytes_of(p) for p in part.parameters if not p.trainable) for part in run.model.parts
    )


def buffer_bytes(model: ModelSpec) -> int:
    """Registered buffers: every rank holds them whole."""
    return sum(part.count * b.bytes for part in model.parts for b in part.buffers)


def frozen_terms(run: Run) -> tuple[Term, ...]:
    """What a rank holds beside everything that trains, at every instant of stages 0 to 2."""
    return (
        Term(
            "frozen parameters", "params", frozen_bytes(run), "stored bytes of what does not train, whole on each rank"
        ),
        Term("model buffers", "buffers", buffer_bytes(run.model), "registered buffers, whole on each rank"),
    )
