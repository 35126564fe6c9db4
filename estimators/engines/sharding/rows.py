"""FSDP2's units and their bytes, and what of a run decides them.

Sources: torch/distributed/fsdp/_fully_shard/_fsdp_param.py (``_init_sharded_param``, ``init_dtype_attrs``),
_fsdp_collectives.py (``_get_param_all_gather_inputs``, ``foreach_reduce``).
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from estimators.devices import DEVICES
from estimators.engines import sharding
from estimators.engines.sharding import NOTHING, Dtypes, Position, Sizes, Unit
from estimators.model.spec import ModelSpec, Parameter
from estimators.run import Run
from estimators.units import ceil_div, power_of_two
from estimators.values import NamedTuple, replace
from estimators.workload import DTYPE_BYTES


class Plan(NamedTuple):
    """What decides the bytes, as a key: equal plans hold equal memory."""

    model: ModelSpec
    dtypes: Dtypes
    shards: int
    replicas: int
    wrap: str
    reshard: bool | int  # after forward: blocks
    reshard_root: bool
    reshard_tail: bool  # norm and head, where they are a unit
    forward_prefetch: int
    backward_prefetch: bool
    accumulates: str  # "", "whole" (no reduction between micro-steps) or "sharded"
    input_has_gradient: bool
    offload: bool
    pinned: bool
    node_ranks: int
    host_apart: bool  # offloaded tensors lie in another memory, and the model is built there


def plan_of(run: Run) -> Plan:
    knobs, device = run.settings.knobs, DEVICES[run.settings.device]
    accumulates = "" if run.workload.grad_accum == 1 else "sharded" if knobs["sync_each_batch"] else "whole"
    offload = run.strategy.params is not None and device.separate_host  # on a CPU nothing moves
    reshard = knobs.get("reshard_after_forward", True) if run.strategy.sharding != "shard-grad-op" else False
    assert isinstance(reshard, bool | int)
    return Plan(
        model=run.model,
        dtypes=Dtypes.of(run),
        shards=run.shards,
        replicas=run.ranks // run.shards,
        wrap=str(knobs["wrap"]),
        reshard=reshard,
        reshard_root=bool(knobs.get("reshard_root", True)),
        reshard_tail=bool(knobs.get("reshard_tail", True)),
        forward_prefetch=int(knobs.get("forward_prefetch", 0)),
        backward_prefetch=knobs.get("backward_prefetch", "pre") == "pre",
        accumulates=accumulates,
        input_has_gradient=sharding.input_has_gradient(run),
        offload=offload,
        pinned=offload and bool(knobs["pin_memory"]) and device.pins_host,
        node_ranks=run.cluster.gpus_per_node,
        host_apart=device.separate_host,
    )


@lru_cache(maxsize=8192)
def unit_sizes(unit: Unit, shards: int, dtypes: Dtypes, head: str) -> Sizes:
    """Bytes of one unit, tensor by tensor."""
    total = NOTHING
    for parameter in unit.parameters:
        one = parameter_sizes(parameter, shards, dtypes, head)
        total = total + one
        if one.gradients:
            largest = max(total.largest, one.gradients)
            total = replace(total, last=one.gradients, last_held=one.held, largest=largest)
    return total


def parameter_sizes(parameter: Parameter, shards: int, dtypes: Dtypes, head: str = "") -> Sizes:
    """Bytes of one tensor, formula P.8. Rows are dealt in chunks of ceil(rows / shards); every rank pads to a whole chunk.

    A quantised tensor is a column of 16-bit storage elements and travels as it is stored.
    """
    stored, compute, reduce = (DTYPE_BYTES[d] for d in (dtypes.stored(parameter), dtypes.compute, dtypes.reduce))
    shape, casts = parameter.shape, dtypes.stored(parameter) != dtypes.compute
    if parameter.stored_bytes is not None:
        shape, stored, compute, casts = (ceil_div(parameter.stored_bytes, 2), 1), 2, 2, False
    local_shape = (ceil_div(shape[0] if shape else 1, shards), *shape[1:])
    local, trains = prod(local_shape), int(parameter.trainable)
    beside, elsewhere = sharding.state_bytes(parameter, local_shape, dtypes, head)
    return Sizes(
        whole=prod(shape) * stored,
        shard=local * stored,
        staged=local * compute,
        cast=local * compute * casts if shards > 1 else 0,
        gathered=local * shards * compute,
        gradients=trains * parameter.numel * compute,
        held=trains * parameter.numel * reduce,
        reduce_in=trains * local * shards * reduce,
        reduce_out=trains * local * reduce,
        shard_gradients=trains * local * stored,
        states=beside,
        host_states=elsewhere,
        pinned=power_of_two(local * stored),
        pinned_gradients=trains * power_of_two(local * stored),
    )


class Laid(NamedTuple):
    """A plan's units with their sizes."""

    root: Sizes
    behind: tuple[Sizes, ...]  # for each run of blocks what of the root has gradients when it works backwards
    tied: int  # bytes of the gradient of a tied embedding
    positions: tuple[Position, ...]
    others: Sizes  # all units but the root
    all: Sizes
    tail: Sizes  # norm and head, when they stay gathered from forward to their backward


@lru_cache(maxsize=1024)
def lay_out(plan: Plan) -> Laid:
    def sized(unit: Unit) -> Sizes:
        return unit_sizes(unit, plan.shards, plan.dtypes, plan.model.head)

    root, others = sharding.units(plan.model, plan.wrap)
    runs = tuple((sized(u), u) for u in others)
    total = NOTHING
    for size, unit in runs:
        total = total + size * unit.count
    names = set(plan.model.tied.values())
    tied = sized(Unit("tied", tuple(p for p in root.parameters if p.name in names))).gradients
    stays = bool(plan.reshard) and not plan.reshard_tail and bool(others) and others[-1].name == "tail"
    return Laid(
        sized(root),
        tuple(sized(Unit("behind", some)) for some in sharding.root_behind(plan.model, plan.wrap)),
        tied,
        tuple(sharding.positions(runs)),
        total,
        sized(root) + total,
        runs[-1][0] if stays else NOTHING,
    )
