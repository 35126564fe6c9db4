"""FSDP1's flat parameters: one tensor a unit, cut evenly, and what decides their bytes.

Sources: torch/distributed/fsdp/_flat_param.py (``_init_flat_param_and_metadata``, ``_get_shard``,
``init_flat_param_attributes``), _init_utils.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from estimators.devices import DEVICES
from estimators.engines import sharding
from estimators.engines.sharding import NOTHING, Dtypes, Position, Sizes, Unit
from estimators.engines.sharding.order import execution_order
from estimators.model.spec import ModelSpec, Parameter, Part
from estimators.run import Run
from estimators.sites import END, START
from estimators.stacks.table import STACKS
from estimators.stacks.versions import is_reentrant
from estimators.units import ceil_div, power_of_two, round_up
from estimators.values import NamedTuple, replace
from estimators.workload import DTYPE_BYTES

ALIGNED_BYTES = 16  # _flat_param.py: _get_aligned_numel; only with use_orig_params
PACKED_BYTES = 2
MANY_RANKS = 16  # beyond so many, ranks with the most real elements are looked for at the ends and in the middle


class Plan(NamedTuple):
    """What decides the bytes, as a key: equal plans hold equal memory."""

    model: ModelSpec
    dtypes: Dtypes
    shards: int  # 1: no-shard, every unit whole
    wrap: str
    sharded: bool
    reshard: bool
    forward_prefetch: bool
    backward_prefetch: str
    original: bool  # use_orig_params
    accumulates: str  # "", "whole" (no_sync) or "sharded"
    offload: bool
    pinned: bool
    node_ranks: int
    host_apart: bool
    adapters_apart: bool = True  # trained leaves are units of their own (peft's policy)
    watches_states: bool = True  # hooks see the encoder's states themselves, not copies of a recomputation


def plan_of(run: Run) -> Plan:
    knobs, device, sharding_name = run.settings.knobs, DEVICES[run.settings.device], run.strategy.sharding
    whole = "sharded" if knobs["sync_each_batch"] else "whole"
    offload = run.strategy.params is not None and device.separate_host  # on a CPU nothing moves
    stack = STACKS[run.workload.stack]
    copies = run.workload.checkpointing != "none" and is_reentrant(stack.trainer, run.settings.versions)
    return Plan(
        run.model, Dtypes.of(run), run.shards, str(knobs["wrap"]), sharding_name != "no-shard",
        sharding_name in ("full-shard", "hybrid-shard"), bool(knobs.get("forward_prefetch")),
        str(knobs.get("backward_prefetch", "pre")), bool(knobs["use_orig_params"]),
        whole if run.workload.grad_accum > 1 else "", offload, offload and device.pins_host,
        run.cluster.gpus_per_node, device.separate_host, stack.adapters_apart, not copies,
    )  # fmt: skip


class Flat(NamedTuple):
    """The layout of one flat parameter, in elements."""

    real: tuple[tuple[Parameter, int], ...]  # each tensor and where it begins
    numel: int  # with alignment, and with padding to the shards where original parameters are kept
    shard: int


def elements(parameter: Parameter) -> int:
    """Elements as a flat parameter holds them: packed 4-bit weights lie in it as 16-bit numbers (``quant_storage``)."""
    return parameter.numel if parameter.stored_bytes is None else ceil_div(parameter.stored_bytes, PACKED_BYTES)


@lru_cache(maxsize=4096)
def lay_flat(parameters: tuple[Parameter, ...], shards: int, aligned: int) -> Flat:
    """Tensors one after the other, formula P.9; ``aligned`` elements is the unit of addresses (0: not aligned)."""
    begins, at = [], 0
    for parameter in parameters:
        at = round_up(at, aligned) if aligned else at
        begins.append((parameter, at))
        at += elements(parameter)
    if aligned:
        at = round_up(at, shards)
    return Flat(tuple(begins), at, ceil_div(at, shards))


def flats_of(unit: Unit, plan: Plan) -> tuple[Flat, ...]:
    """One flat parameter a unit; where some tensors are frozen, trainable ones are units of their own.

    (peft's ``fsdp_auto_wrap_policy``.) Stacks that wrap blocks alone keep both in one flat parameter, whose gradient is
    whole: zeros for what is frozen (``use_orig_params``; torch/distributed/fsdp/_flat_param.py).
    """
    aligned = ALIGNED_BYTES // DTYPE_BYTES[plan.dtypes.compute] if plan.original else 0
    groups = [unit.parameters]
    if plan.adapters_apart and len({p.trainable for p in unit.parameters}) > 1:
        groups = [tuple(p for p in unit.parameters if not p.trainable)]
        groups += [(p,) for p in unit.parameters if p.trainable]
    return tuple(lay_flat(group, plan.shards, aligned) for group in groups if group)


def unit_sizes(unit: Unit, plan: Plan) -> Sizes:
    total = NOTHING
    for flat in flats_of(unit, plan):
        total = total + flat_sizes(flat, plan)
    return total


def block_sizes(unit: Unit, plan: Plan) -> Sizes:
    """Of a unit that may have adapters inside: one of them is flattened at a time, and gathered at a time unless all
    stay gathered, so what counts is the block's own flat parameter."""
    whole, (own, *adapters) = unit_sizes(unit, plan), flats_of(unit, plan)
    if not adapters:
        return whole
    alone = flat_sizes(own, plan)
    whole = replace(whole, staged=alone.staged)
    return replace(whole, gathered=alone.gathered, cast=alone.cast) if plan.reshard else whole


class Inside(NamedTuple):
    """A block whose adapters are units inside it: its frozen part, and the adapters as their gradients come.

    ``made``: bytes of gradients that are complete before each of them, and behind the last. ``waits``: the frozen part
    stays gathered until the whole stack has gone backwards.
    """

    base: Sizes
    adapters: tuple[Sizes, ...]
    made: tuple[int, ...]
    waits: bool

    def done(self, number: int) -> Sizes:
        """The first ``number`` adapters together."""
        return sum(self.adapters[:number], NOTHING)


def inside_of(part: Part, unit: Unit, plan: Plan) -> Inside | None:
    """Nothing where a block is one unit."""
    frozen, *flats = flats_of(unit, plan)
    if not flats:
        return None
    trained = {flat.real[0][0].name: flat_sizes(flat, plan) for flat in flats}
    names = [part.parameters[i].name for i in reversed(execution_order(part)) if part.parameters[i].trainable]
    adapters = tuple(trained[name] for name in names)
    made = tuple(accumulate((a.gradients for a in adapters), initial=0))
    return Inside(flat_sizes(frozen, plan), adapters, made, plan.watches_states and reads_states(plan.model, part.role))


ELSEWHERE = ("EncDecAttention.", "encoder_attn.", "cross_attn.")  # in names: attention to another stack's output


@lru_cache(maxsize=1024)
def reads_states(model: ModelSpec, role: str) -> bool:
    """Whether blocks of a stack are given another stack's output, which needs a gradient.

    FSDP1 frees a unit without trained weights when the gradients of all tensors that its forward was given are there
    (_runtime_utils.py, ``_register_post_backward_reshard_only_hook``). The encoder's states get theirs from every block
    of the decoder: none of these is let go before the first has gone backwards. BART, T5 and Mllama give them to all.
    """
    reads = any(
        mark in p.name for part in model.blocks if part.role == role for p in part.parameters for mark in ELSEWHERE
    )
    others = [part for part in model.blocks if part.role != role]
    return reads and any(p.trainable for part in others for p in part.parameters)


def flat_sizes(flat: Flat, plan: Plan) -> Sizes:
    """Bytes of one flat parameter; ``states`` are counted by rank (``rank_states``).

    ``staged`` is the flat tensor before it is cut, ``held`` the flat gradient, ``reduce_in`` what is made of it to be
    reduced: a cast where dtypes differ, a padded copy where elements do not divide. Without shards the low-precision
    copy of a unit stands in the place of the gathered one.
    """
    dtypes, first = plan.dtypes, flat.real[0][0]
    stored, compute, reduce = (DTYPE_BYTES[d] for d in (dtypes.stored(first), dtypes.compute, dtypes.reduce))
    casts, trains = dtypes.stored(first) != dtypes.compute, int(any(p.trainable for p, _ in flat.real))
    whole = flat.shard * plan.shards
    shard_gradients = trains * flat.shard * stored
    if plan.sharded:
        gathered = whole * compute
        cast_gradient = flat.numel * reduce if dtypes.reduce != dtypes.compute else 0
        padded_gradient = whole * reduce if whole != flat.numel else 0
        reduce_in, reduce_out = trains * (cast_gradient + padded_gradient), trains * flat.shard * reduce
    else:
        gathered = flat.numel * compute if casts else 0
        reduce_in, reduce_out = 0, shard_gradients if dtypes.stored(first) != dtypes.compute else 0
    return Sizes(
        whole=sum(elements(p) for p, _ in flat.real) * stored,
        staged=flat.numel * stored,
        shard=flat.shard * stored,
        cast=flat.shard * compute if plan.sharded and (casts or plan.offload) else 0,
        gathered=gathered,
        gradients=sum(p.numel for p, _ in flat.real if p.trainable) * compute,
        held=trains * flat.numel * compute,
        reduce_in=reduce_in,
        reduce_out=reduce_out,
        shard_gradients=shard_gradients,
        pinned=power_of_two(flat.shard * stored),
        pinned_gradients=trains * power_of_two(flat.shard * stored),
    )


class Laid(NamedTuple):
    """A plan's units with their sizes."""

    root: Sizes
    behind: tuple[int, ...]  # for each run of blocks the gradients of the root that exist when it works backwards
    tied: int
    positions: tuple[Position, ...]
    others: Sizes
    all: Sizes
    states: int
    host_states: int
    inside: tuple[Inside | None, ...]  # by runs of blocks


@lru_cache(maxsize=1024)
def lay_out(plan: Plan) -> Laid:
    root, others = sharding.units(plan.model, plan.wrap, False)
    compute, tied_names = DTYPE_BYTES[plan.dtypes.compute], set(plan.model.tied.values())
    sizes = tuple((block_sizes(u, plan), u) for u in others)
    total = NOTHING
    for size, unit in sizes:
        total = total + size * unit.count
    root_size = unit_sizes(root, plan)
    beside, elsewhere = rank_states(plan)
    return Laid(
        root_size,
        tuple(
            sum(p.numel for p in some if p.trainable) * compute
            for some in sharding.root_behind(plan.model, plan.wrap, False)
        ),
        sum(p.numel for p in root.parameters if p.trainable and p.name in tied_names) * compute,
        tuple(sharding.positions(sizes)),
        total,
        total + root_size,
        beside,
        elsewhere,
        tuple(inside_of(plan.model.blocks[u.part], u, plan) for u in others if START < u.part < END),
    )


def rank_states(plan: Plan) -> tuple[int, int]:
    """Optimizer states of the rank that has most: beside the shards, and in host RAM.

    With original parameters the optimizer sees a rank's slice of each, without padding, and none of a tensor that lies
    elsewhere; without them it sees the flat shard.
    """
    return max((_states_on(plan, rank) for rank in _ranks(plan)), key=lambda s: s[0])


def _ranks(plan: Plan) -> Sequence[int]:
    """Those that can have most."""
    if plan.shards <= MANY_RANKS:
        return range(plan.shards)
    return sorted({0, 1, plan.shards // 2, plan.shards - 2, plan.shards - 1})


def _states_on(plan: Plan, rank: int) -> tuple[int, int]:
    beside = elsewhere = 0
    root, others = sharding.units(plan.model, plan.wrap, False)
    for unit in (root, *others):
        for flat in flats_of(unit, plan):
            for parameter, numel in _slices(flat, rank, plan.original):
                b, e = sharding.state_bytes(parameter, numel, plan.dtypes, plan.model.head)
                beside, elsewhere = beside + b * unit.count, elsewhere + e * unit.count
    return beside, elsewhere


def _slices(flat: Flat, rank: int, original: bool) -> list[tuple[Parameter, int]]:
    """Elements of each tensor that lie in a rank's shard."""
    if not original:
        return [(flat.real[0][0], flat.shard)]
    low, high = rank * flat.shard, (rank + 1) * flat.shard
    cut = [(p, min(high, begin + elements(p)) - max(low, begin)) for p, begin in flat.real]
    return [(p, numel) for p, numel in cut if numel > 0]


@lru_cache(maxsize=1024)
def largest_slice(plan: Plan) -> int:
    """Elements of the largest tensor that the optimizer of any rank steps: a flat shard, or a slice of an original."""
    root, others = sharding.units(plan.model, plan.wrap, False)
    flats = (flat for unit in (root, *others) for flat in flats_of(unit, plan))
    return max(
        (n for flat in flats for rank in _ranks(plan) for p, n in _slices(flat, rank, plan.original) if _steps(p, flat, plan)),
        default=0,
    )  # fmt: skip


def _steps(parameter: Parameter, flat: Flat, plan: Plan) -> bool:
    return parameter.trainable if plan.original else any(p.trainable for p, _ in flat.real)
