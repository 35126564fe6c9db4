"""FSDP2 (``fully_shard``): every tensor is cut along its first dimension, units are gathered for use.

One optimizer step, as torch 2.13 runs it (torch/distributed/fsdp/_fully_shard):

    load      each unit is sharded by itself; the whole unit and its shard exist together (_fsdp_param.py,
              _init_sharded_param)
    forward   the root is gathered first and stays; a block is gathered into one flat buffer, copied out tensor by
              tensor, and the buffer stays until the next block has been copied out in its turn, to overlap the two
              (_fsdp_param_group.py, wait_for_unshard: ``prev_all_gather_state``)
    backward  a block is gathered again, the one before it is prefetched; the reduce-scatter input of the block behind
              it stays until this block's own reduction (``reduce_scatter_states``)
    reduce    the unit's gradients are copied into one padded buffer in the reduce dtype, freed, and reduce-scattered
              into the sharded gradient (_fsdp_collectives.py, foreach_reduce); the root's turn comes last
    step      shards, their gradients, and states of the shards

Frees happen in program order, through ``storage.resize_(0)``, so that allocated bytes are the same on every device.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from estimators.engines import sharding
from estimators.engines.sharding import NOTHING, Amount, Moment, Moments, Placed, Position, Sizes, as_terms, plus
from estimators.engines.sharding.rows import Laid, Plan, lay_out, parameter_sizes, plan_of
from estimators.optimizers import tables_bytes
from estimators.result import Term
from estimators.run import Run
from estimators.sites import END, IN_LOOP, OUTSIDE, START, Site

AMOUNTS = {
    "parameter shards": Amount("params", "each tensor's rows / shards, rounded up, in the stored dtype"),
    "model buffers": Amount("buffers", "registered buffers, whole on every rank"),
    "quantisation statistics": Amount("params", "absmax and code books beside 4-bit weights: not sharded"),
    "model before sharding": Amount("params", "units not yet sharded, whole, in the dtype of loading"),
    "gathered root unit": Amount("params", "root parameters, padded, in the compute dtype"),
    "gathered units": Amount("params", "units gathered at this moment, padded, in the compute dtype"),
    "post-forward shards": Amount("params", "gathered units / reshard_after_forward ranks, in the compute dtype"),
    "all-gather buffers": Amount("buffers", "flat all-gather outputs: this unit's, the last one's, prefetched ones"),
    "cast shards": Amount("buffers", "shards of the unit to be gathered, cast to the compute dtype"),
    "accumulated gradients": Amount("gradients", "whole gradients held over micro-steps, in the reduce dtype"),
    "root gradients": Amount("gradients", "gradients of head and final norm (and embedding, when it is reached)"),
    "unit gradients": Amount("gradients", "whole gradients of one unit in the compute dtype"),
    "reduce-scatter input": Amount("buffers", "unit gradients, padded, in the reduce dtype"),
    "reduce-scatter output": Amount("buffers", "reduce-scatter input / shards, while it is cast to the stored dtype"),
    "all-reduce inputs": Amount("buffers", "reduced shards held until the end of backward: dtype of reduction differs"),
    "sharded gradients": Amount("gradients", "reduced gradients of the shards, padded, in the stored dtype"),
    "optimizer states": Amount("optimizer", "states of each trainable shard"),
    "parameter being gathered": Amount("params", "the largest tensor, whole, in the stored dtype"),
}
HOST_AMOUNTS = {
    "parameter shards": Amount("params", "shards of the node's ranks; pinned blocks round up to powers of two"),
    "sharded gradients": Amount("gradients", "gradients of the node's ranks; pinned as the shards are"),
    "optimizer states": Amount("optimizer", "states of the node's ranks, stepped on the CPU"),
    "step counters": Amount("optimizer", "optimizer states that always lie in host RAM"),
    "gathered checkpoint": Amount("params", "the whole model in the stored dtype, on rank 0"),
}


def moments_of(run: Run) -> Moments:
    """Terms of each moment that can be the largest, for the rank that needs most (rank 0: its shards are never short)."""
    return placed(plan_of(run))


# -- the step, in order ----------------------------------------------------------------------------------------------


def load_moments(plan: Plan) -> Iterator[Placed]:
    """Each unit is sharded by itself: blocks first, the root last (_fsdp_init.py, _move_states_to_device).

    Where host and device are one, the model was built there whole; else a unit comes to the device to be sharded.
    """
    laid = lay_out(plan)

    def moment(done: int, waiting: int, unit: Sizes) -> Placed:
        return OUTSIDE, {
            "parameter shards": (0 if plan.offload else done) + unit.shard,
            "model before sharding": unit.whole + (0 if plan.host_apart else waiting),
        }

    for p in laid.positions:
        yield moment(p.earlier.shard, p.later.whole + laid.root.whole, p.unit)
    yield moment(laid.others.shard, 0, laid.root)
    yield IN_LOOP, {"parameter shards": 0 if plan.offload else laid.all.shard}


def forward_moments(plan: Plan) -> Iterator[Placed]:
    """The root, then unit after unit (F.1). The flat buffer of each gather outlives the copy out of it by one unit."""
    laid, root = lay_out(plan), lay_out(plan).root
    start, last = Site("forward", START, 0, "before"), root
    yield start, {"all-gather buffers": _flat(plan, root), "cast shards": _cast(plan, root)}
    yield start, {"gathered root unit": root.gathered, "all-gather buffers": _flat(plan, root)}
    for p in laid.positions:
        left = {"gathered root unit": root.gathered, **_kept(plan, p.earlier)}
        last, following = p.previous or root, p.following or NOTHING
        ready = min(plan.forward_prefetch * p.unit.gathered, p.unit.gathered + p.later.gathered) if p.previous else 0
        flat = _flat(plan, last) + max(_flat(plan, p.unit), ready)
        if not ready:
            yield p.site("forward", "before"), {**left, "all-gather buffers": flat, "cast shards": _cast(plan, p.unit)}
        yield p.site("forward", "before"), plus(left, {"gathered units": p.unit.gathered, "all-gather buffers": flat})
        ahead = min(plan.forward_prefetch * following.gathered, p.later.gathered) if plan.shards > 1 else 0
        yield p.site("forward", "during"), plus(left, {
            "gathered units": p.unit.gathered,
            "all-gather buffers": _flat(plan, p.unit) + ahead,
            "cast shards": _cast(plan, following) if ahead else 0,
        })  # fmt: skip
    if not laid.positions or laid.positions[-1].part != END:
        yield Site("loss", END, 0, "during"), _at_the_end(plan, laid)


def _at_the_end(plan: Plan, laid: Laid) -> Moment:
    """Between the last block and its backward: the root, what never reshards, and the last block's flat buffer."""
    last = laid.positions[-1].unit if laid.positions else laid.root
    kept = _kept(plan, laid.others)
    return plus({"gathered root unit": laid.root.gathered, "all-gather buffers": _flat(plan, last)}, kept)


def backward_moments(plan: Plan) -> Iterator[Placed]:
    """The root is gathered again, then unit after unit from the last: gather, prefetch, gradients (F.4).

    Some stacks keep the root, and norm and head where they are a unit, from forward (``reshard_after_forward=False``).
    """
    laid, root = lay_out(plan), lay_out(plan).root
    left = {"gathered root unit": root.gathered, **_kept(plan, laid.others)}
    held = _accumulated(plan, laid.all, laid.all, NOTHING)
    end = Site("backward", END, 0, "before")
    if plan.reshard and plan.reshard_root and root.gathered:
        left["gathered units"] = left.get("gathered units", 0) + laid.tail.gathered
        again = plus(_kept(plan, laid.all), {"all-gather buffers": _flat(plan, root)})
        yield end, {**held, **again, "cast shards": _cast(plan, root)}
        yield end, {**held, **left, "all-gather buffers": _flat(plan, root)}
    if not laid.positions or laid.positions[-1].part != END:
        # the last block's flat buffer went when the root's forward returned (_fsdp_state.py ``_post_forward``), and comes
        # again before the loss has a gradient: the root's ``_pre_backward`` prefetches the unit that ran before it
        last = laid.positions[-1].unit if laid.positions and plan.reshard and plan.backward_prefetch else NOTHING
        end_held = {**_at_the_end(plan, laid), "all-gather buffers": _flat(plan, last)}
        yield Site("backward", END, 0, "during", _grows(plan)), {**held, **end_held}
    for p in reversed(laid.positions):
        yield from _unit_backward(plan, p)
    yield Site("backward", START, 0, "after"), _when_all_is_done(plan, laid)


def _when_all_is_done(plan: Plan, laid: Laid) -> Moment:
    """Every unit is reduced but the root, and a first unit that waited; head and embedding are added out of place."""
    root, first = laid.root, laid.positions[0].unit if laid.positions else NOTHING
    latecomer = _latecomer(plan, laid)
    waits = latecomer is not NOTHING
    behind = first.reduce_in if not waits else laid.positions[1].unit.reduce_in if len(laid.positions) > 1 else 0
    done = laid.others + latecomer * -1
    return {
        "gathered root unit": root.gathered,
        "gathered units": latecomer.gathered,
        "unit gradients": _gradients(plan, latecomer),
        "root gradients": _gradients(plan, root) + 2 * laid.tied,
        "reduce-scatter input": behind,
        "all-reduce inputs": _held_back(plan, done),
        **_accumulated(plan, laid.all, root + latecomer, done),
    }


def _unit_backward(plan: Plan, p: Position) -> Iterator[Placed]:
    """Copy out, prefetch of the unit before, the work itself, and the end of this unit's gradients."""
    laid = lay_out(plan)
    before = p.previous if p.previous is not None and plan.reshard and plan.backward_prefetch else NOTHING
    left = {
        "gathered root unit": laid.root.gathered,
        "root gradients": _early(plan, p),
        "reduce-scatter input": p.following.reduce_in if p.following else 0,
        "all-reduce inputs": _held_back(plan, p.later),
        **_accumulated(plan, laid.all, laid.all + p.later * -1, p.later),
    }
    if plan.reshard and p.unit is not laid.tail:
        yield (
            p.site("backward", "before"),
            plus(
                left,
                _kept(plan, p.earlier + p.unit),
                {"gathered units": p.unit.gathered, "all-gather buffers": _flat(plan, p.unit)},
            ),
        )
    here = plus(
        left, _kept(plan, p.earlier), {"gathered units": p.unit.gathered, "all-gather buffers": _flat(plan, before)}
    )
    yield p.site("backward", "before"), {**here, "cast shards": _cast(plan, before)}
    yield p.site("backward", "during", _grows(plan)), here
    yield p.site("backward", "after"), {**here, "unit gradients": _gradients(plan, p.unit)}


def _grows(plan: Plan) -> str:
    """How a unit's gradients count while it works: whole ones pile up unless they are added to kept ones."""
    return "fresh" if _adds_in_place(plan) else "made"


def reduce_moments(plan: Plan) -> Iterator[Placed]:
    """Unit after unit from the last, each when its gradients are complete; the root and what waits for it last (F.5)."""
    laid = lay_out(plan)
    latecomer = _latecomer(plan, laid)
    for p in reversed(laid.positions):
        late = latecomer is not NOTHING and p.previous is None
        before = p.previous if p.previous is not None and plan.reshard and plan.backward_prefetch else NOTHING
        around = {"all-gather buffers": _flat(plan, before)} if not late else {}
        if not late:
            around["gathered root unit"] = laid.root.gathered
            around["root gradients"] = _early(plan, p)
        done = p.later + laid.root if late else p.later
        site = Site("backward", START, 0, "before") if late else p.site("backward", "after")
        for moment in _reduction(plan, p.unit, done, plus(around, _kept(plan, p.earlier))):
            yield site, moment
    waiting = {"gathered units": latecomer.gathered, "unit gradients": _gradients(plan, latecomer)}
    for moment in _reduction(plan, laid.root, laid.others + latecomer * -1, {}, "root gradients"):
        yield Site("backward", START, 0, "before"), plus(moment, waiting)


def _reduction(plan: Plan, unit: Sizes, done: Sizes, around: Moment, name: str = "unit gradients") -> Iterator[Moment]:
    """Copy into the padded buffer; reduce-scatter; cast to the stored dtype where it differs."""
    laid = lay_out(plan)
    if not unit.reduce_in:
        return
    around = plus(around, {"reduce-scatter input": unit.reduce_in, "all-reduce inputs": _held_back(plan, done)})
    gradients = _gradients(plan, unit) if plan.accumulates != "whole" else 0
    yield plus(around, {name: gradients}, _accumulated(plan, laid.all, laid.all + done * -1, done))
    last = unit.last_held if plan.accumulates == "whole" else unit.last  # a loop variable of foreach_reduce holds it
    after = plus(_accumulated(plan, laid.all, laid.all + done * -1 + unit * -1, done), {name: last})
    becomes_gradient = unit.reduce_out == unit.shard_gradients and plan.accumulates != "sharded" and not plan.offload
    if becomes_gradient:
        yield plus(around, after, {"sharded gradients": unit.shard_gradients})
    else:
        cast = unit.shard_gradients if unit.reduce_out != unit.shard_gradients else 0
        yield plus(around, after, {"reduce-scatter output": unit.reduce_out, "sharded gradients": cast})


def step_moment(plan: Plan) -> Moment:
    return {"sharded gradients": 0 if plan.offload else lay_out(plan).all.shard_gradients}


def save_moment(plan: Plan) -> Moment:
    """A full state dict is gathered tensor by tensor and moved to rank 0's host (torch/distributed/checkpoint)."""
    every = (p for part in plan.model.parts for p in part.parameters)
    sizes = (parameter_sizes(p, plan.shards, plan.dtypes) for p in every)
    return {"parameter being gathered": max(s.shard * plan.shards for s in sizes)}


# -- what stays around a moment --------------------------------------------------------------------------------------


def _flat(plan: Plan, unit: Sizes) -> int:
    """The all-gather's own output; one rank has nothing to gather."""
    return unit.gathered if plan.shards > 1 else 0


def _cast(plan: Plan, unit: Sizes) -> int:
    """Offloaded shards are always copied to the device; others only when they change dtype."""
    return unit.staged if plan.offload else unit.cast


def _gradients(plan: Plan, unit: Sizes) -> int:
    """Whole gradients; where they are held in the compute dtype anyway, autograd adds to them one by one."""
    return unit.largest if _adds_in_place(plan) else unit.gradients


def _early(plan: Plan, p: Position) -> int:
    """The root's gradients that wait for the end of backward when this unit works: of head and final norm, of a
    projector behind the unit."""
    behind = p.of_run(lay_out(plan).behind) or NOTHING
    return 0 if _adds_in_place(plan) else behind.gradients


def _adds_in_place(plan: Plan) -> bool:
    return plan.accumulates == "whole" and plan.dtypes.reduce == plan.dtypes.compute


def _kept(plan: Plan, units: Sizes) -> Moment:
    """What units leave between their forward and their backward (F.3)."""
    if plan.reshard is False:
        return {"gathered units": units.gathered}
    if plan.reshard is True:
        return {}
    return {"post-forward shards": units.gathered // plan.reshard}


def _accumulated(plan: Plan, everything: Sizes, waiting: Sizes, done: Sizes) -> Moment:
    """Gradients for the optimizer: of the units that are done, and what earlier micro-steps left of all."""
    whole = {"accumulated gradients": waiting.held} if plan.accumulates == "whole" else {}
    if plan.offload:
        return whole
    return {**whole, "sharded gradients": (everything if plan.accumulates == "sharded" else done).shard_gradients}


def _held_back(plan: Plan, done: Sizes) -> int:
    """Between replicas, reduced shards of another dtype are kept to the end of backward (``_all_reduce_state``)."""
    return done.reduce_out if plan.replicas > 1 and done.reduce_out != done.shard_gradients else 0


def _latecomer(plan: Plan, laid: Laid) -> Sizes:
    """The first unit, when its post-backward runs only at the very end because its input has no gradient."""
    if laid.positions and (laid.positions[0].is_input or not plan.input_has_gradient):
        return laid.positions[0].unit
    return NOTHING


# -- terms -----------------------------------------------------------------------------------------------------------


def moments(plan: Plan) -> dict[str, list[Placed]]:
    """Every moment that can be the largest of its instant, without what is always there."""
    held = _accumulated(plan, lay_out(plan).all, lay_out(plan).all, NOTHING)
    forward = [(site, plus(held, m)) for site, m in forward_moments(plan)]
    return {
        "load": list(load_moments(plan)),
        "forward": [(site, m) for site, m in forward if site.direction == "forward"],
        "loss": [(site, m) for site, m in forward if site.direction == "loss"],
        "backward": list(backward_moments(plan)),
        "reduce": list(reduce_moments(plan)),
        "step": [(IN_LOOP, step_moment(plan))],
        "save": [(OUTSIDE, save_moment(plan))],
    }


@lru_cache(maxsize=1024)
def placed(plan: Plan) -> Moments:
    """The moments as terms, with what is always there."""
    laid, on_device = lay_out(plan), 0 if plan.offload else 1
    base = {
        "parameter shards": laid.all.shard * on_device,
        "quantisation statistics": sum(sharding.per_part(part, lambda p: p.side_bytes) for part in plan.model.parts),
        "model buffers": sharding.model_buffers(plan.model),
        "optimizer states": (laid.all.states + tables_bytes(plan.dtypes.optimizer)) * on_device,
    }
    at_load = {name: base[name] for name in ("quantisation statistics", "model buffers")}
    return {
        name: tuple(
            (site, (*as_terms(plus(at_load if name == "load" else base, m), AMOUNTS), *_host(plan, name)))
            for site, m in candidates
        )
        for name, candidates in moments(plan).items()
    }


def _host(plan: Plan, instant: str) -> tuple[Term, ...]:
    """Host RAM of the node (H.6): every rank offloads its own shards; counters lie there in any case."""
    total, ranks = lay_out(plan).all, plan.node_ranks
    held: dict[str, int] = {}
    if plan.offload:
        held["parameter shards"] = (total.pinned if plan.pinned else total.shard) * ranks
        if instant != "load":
            held["optimizer states"] = total.states * ranks
        if instant in ("reduce", "step") or (plan.accumulates == "sharded" and instant != "load"):
            held["sharded gradients"] = (total.pinned_gradients if plan.pinned else total.shard_gradients) * ranks
    if instant != "load":
        held["step counters"] = total.host_states * ranks
    if instant == "save":
        held["gathered checkpoint"] = total.whole
    return as_terms(held, HOST_AMOUNTS, "host")
