"""FSDP1 (``FullyShardedDataParallel``): each unit is one flat parameter, cut evenly.

One optimizer step, as torch 2.13 runs it (torch/distributed/fsdp/_runtime_utils.py, _flat_param.py):

    load      a unit's tensors are copied into a flat one, of which each rank keeps its part
    forward   shards are cast to the compute dtype, gathered, and the cast is freed; a block is freed before the next
              is gathered; the root stays until its gradients are reduced (``_post_forward_reshard``)
    backward  before a block's backward the block in front of it is gathered as well (``backward_prefetch``); its
              tensors' gradients are joined into one flat gradient when the last of them is there
    reduce    the flat gradient is cast to the reduce dtype, padded if it must be, and reduce-scattered; all of them
              live until the call ends (``_post_backward_hook``); the root's turn comes last
    step      shards, their gradients, and states of the shards

Tensors are freed in this order on every device. On CUDA the allocator may not reuse them until the streams that used
them are done (``record_stream``): that is its reserve, not allocated bytes, and ``limit_all_gathers`` bounds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from estimators.engines import sharding
from estimators.engines.sharding import NOTHING, Amount, Moment, Moments, Placed, Position, Sizes, as_terms, plus
from estimators.engines.sharding import flat_adapters as adapters
from estimators.engines.sharding.flat import Laid, Plan, lay_out, plan_of
from estimators.engines.sharding.flat_held import (
    behind,
    delayed,
    gathers_ahead,
    gradients_held,
    kept,
    prefetched,
    reduction,
)
from estimators.optimizers import tables_bytes
from estimators.result import Term
from estimators.run import Run
from estimators.sites import END, IN_LOOP, OUTSIDE, START, Site

AMOUNTS = {
    "parameter shards": Amount("params", "flat parameters / shards, rounded up, in the stored dtype"),
    "model buffers": Amount("buffers", "registered buffers, whole on every rank"),
    "quantisation statistics": Amount("params", "absmax and code books beside 4-bit weights: not sharded"),
    "model before sharding": Amount("params", "tensors not yet flattened, in the stored dtype"),
    "flat parameter": Amount("params", "one unit joined into a flat tensor, before it is cut"),
    "gathered root unit": Amount("params", "the root's flat parameter, padded, in the compute dtype"),
    "gathered units": Amount("params", "flat parameters gathered at this moment, padded, in the compute dtype"),
    "cast shards": Amount("params", "shards of the unit to be gathered, in the compute dtype"),
    "accumulated gradients": Amount("gradients", "flat gradients held over micro-steps, in the compute dtype"),
    "root gradients": Amount("gradients", "gradients of head and final norm, until the root's are joined"),
    "unit gradients": Amount("gradients", "gradients of one unit, tensor by tensor, in the compute dtype"),
    "flat gradient": Amount("gradients", "the same joined into one flat tensor"),
    "gradient to reduce": Amount("buffers", "the flat gradient in the reduce dtype, padded"),
    "reduced gradient": Amount("buffers", "reduce-scatter output, until it is cast or added"),
    "sharded gradients": Amount("gradients", "reduced gradients of the shards, in the stored dtype"),
    "optimizer states": Amount("optimizer", "states of each trainable slice of a rank"),
    "parameters gathered to save": Amount("params", "the largest unit, whole, in the stored dtype"),
}
HOST_AMOUNTS = {
    "parameter shards": Amount("params", "shards of the node's ranks; pinned blocks round up to powers of two"),
    "sharded gradients": Amount("gradients", "allocated before the first step, pinned as the shards are"),
    "optimizer states": Amount("optimizer", "states of the node's ranks, stepped on the CPU"),
    "step counters": Amount("optimizer", "optimizer states that always lie in host RAM"),
    "gathered checkpoint": Amount("params", "the whole model in the stored dtype, on rank 0"),
}


def moments_of(run: Run) -> Moments:
    """Terms of each moment that can be the largest, for the rank that needs most."""
    return placed(plan_of(run))


# -- the step, in order ----------------------------------------------------------------------------------------------


def load_moments(plan: Plan) -> Iterator[Placed]:
    """Inner units first, the root last (wrap.py, _recursive_wrap; _flat_param.py, flatten_tensors and shard)."""
    laid = lay_out(plan)

    def moment(done: int, waiting: int, unit: Sizes, own: int) -> Placed:
        cut = unit.shard if plan.sharded else 0
        return OUTSIDE, {
            "parameter shards": (0 if plan.offload else done) + cut,
            "flat parameter": unit.staged,
            "model before sharding": own + (0 if plan.host_apart else waiting),
        }

    for p in laid.positions:
        block = laid.inside[p.part] if 0 <= p.part < len(laid.inside) else None  # its adapters are cut by then
        own = p.unit.whole if block is None else block.base.whole
        yield moment(p.earlier.shard, p.later.whole + laid.root.whole, p.unit, own)
    yield moment(laid.others.shard, 0, laid.root, laid.root.whole)


def forward_moments(plan: Plan) -> Iterator[Placed]:
    """The root, then unit after unit (F.2); a unit is freed before the next is gathered, unless that was prefetched."""
    laid, root = lay_out(plan), lay_out(plan).root
    held = gradients_held(plan, laid.all, NOTHING)
    yield Site("forward", START, 0, "before"), {**held, "gathered root unit": root.gathered, "cast shards": root.cast}
    for p in laid.positions:
        ahead = p.following if plan.forward_prefetch and p.following else NOTHING
        here = {
            **held,
            "gathered root unit": root.gathered,
            "gathered units": kept(plan, p.earlier).gathered + p.unit.gathered + ahead.gathered,
        }
        cast = ahead.cast if plan.forward_prefetch and p.previous else max(p.unit.cast, ahead.cast)
        yield p.site("forward", "before"), {**here, "cast shards": cast}
        yield p.site("forward", "during"), here
    if not laid.positions or laid.positions[-1].part != END:
        yield Site("loss", END, 0, "during"), _at_the_end(plan, laid)


def _at_the_end(plan: Plan, laid: Laid) -> Moment:
    """Between the last block and its backward: the root, and units that stay gathered."""
    held = gradients_held(plan, laid.all, NOTHING)
    return {**held, "gathered root unit": laid.root.gathered, "gathered units": kept(plan, laid.others).gathered}


def backward_moments(plan: Plan) -> Iterator[Placed]:
    """Unit after unit from the last; the root's gradients are joined at the very end."""
    laid, root = lay_out(plan), lay_out(plan).root
    if not laid.positions or laid.positions[-1].part != END:
        # the root's ``_pre_backward_hook`` gathers the block that ran last before the loss has a gradient
        ahead = laid.positions[-1].unit if laid.positions and gathers_ahead(plan, "pre") else NOTHING
        yield (
            Site("backward", END, 0, "during", "made"),
            plus(_at_the_end(plan, laid), {"gathered units": ahead.gathered}),
        )
    for p in reversed(laid.positions):
        yield from _unit_backward(plan, laid, p)
    around = {"gathered root unit": root.gathered, **gradients_held(plan, root, laid.others)}
    start = Site("backward", START, 0, "after")
    yield start, {**around, "root gradients": root.gradients + 2 * laid.tied}  # tied parts are added out of place
    yield start, {**around, "root gradients": root.gradients, "flat gradient": root.held}


def _unit_backward(plan: Plan, laid: Laid, p: Position) -> Iterator[Placed]:
    """Prefetch of the unit in front; the work; gradients of this one, and their flat copy."""
    if (block := adapters.inside(plan, laid, p)) is not None:
        yield from adapters.backward(plan, laid, p, block)
        return
    before, late = prefetched(plan, p, "pre"), delayed(plan, p)
    done = p.later + late * -1
    left = {
        "gathered root unit": laid.root.gathered,
        "gathered units": kept(plan, p.earlier).gathered + p.unit.gathered + before.gathered + late.gathered,
        "unit gradients": late.gradients,
        "root gradients": behind(laid, p),
        **gradients_held(plan, laid.all + done * -1, done),
    }
    cast = before.cast if before is not NOTHING else p.unit.cast if plan.reshard else 0
    yield p.site("backward", "before"), {**left, "cast shards": cast}
    yield p.site("backward", "during", "made"), left
    joined = late if plan.forward_prefetch else p.unit
    own = {"unit gradients": p.unit.gradients, "flat gradient": joined.held}
    yield p.site("backward", "after"), plus(left, own)
    if plan.forward_prefetch and p.previous is None:  # the first unit's turn comes after the embedding's gradient
        held = gradients_held(plan, laid.all + p.later * -1, p.later)
        own = {"unit gradients": p.unit.gradients, "flat gradient": p.unit.held, "gathered units": p.unit.gathered}
        root = {"gathered root unit": laid.root.gathered, "root gradients": laid.root.gradients}
        yield p.site("backward", "after"), {**held, **root, **own}


def reduce_moments(plan: Plan) -> Iterator[Placed]:
    """Unit after unit from the last, the root at the end."""
    laid = lay_out(plan)
    for p in reversed(laid.positions):
        if plan.forward_prefetch:
            yield from _delayed_reductions(plan, laid, p)
            continue
        if (block := adapters.inside(plan, laid, p)) is not None:
            yield from adapters.reductions(plan, laid, p, block)
            continue
        before = prefetched(plan, p, "pre", "post")
        around = {
            "gathered root unit": laid.root.gathered,
            "gathered units": kept(plan, p.earlier).gathered + before.gathered,
            "root gradients": behind(laid, p),
        }
        site = p.site("backward", "after")
        if plan.backward_prefetch == "post":
            held = gradients_held(plan, laid.all + p.later * -1 + p.unit * -1, p.later)
            yield site, {**around, **plus(held, {"flat gradient": p.unit.held, "cast shards": before.cast})}
        yield site, plus(around, reduction(plan, laid, p.unit, p.later))
    yield Site("backward", START, 0, "before"), reduction(plan, laid, laid.root, laid.others)


def _delayed_reductions(plan: Plan, laid: Laid, p: Position) -> Iterator[Placed]:
    """With ``forward_prefetch``: the unit behind, while this one's gradients wait; the first unit with the root's."""
    late, site = delayed(plan, p), p.site("backward", "after")
    here = kept(plan, p.earlier).gathered + prefetched(plan, p, "pre").gathered
    around = {"gathered root unit": laid.root.gathered}
    if late is not NOTHING:
        waiting = {"gathered units": here + p.unit.gathered, "unit gradients": p.unit.gradients}
        done = p.later + late * -1
        yield (
            site,
            plus(around, waiting, {"root gradients": behind(laid, p)}, reduction(plan, laid, late, done)),
        )
    if p.previous is None:
        yield site, plus(around, {"root gradients": laid.root.gradients}, reduction(plan, laid, p.unit, p.later))


# -- terms -----------------------------------------------------------------------------------------------------------


def moments(plan: Plan) -> dict[str, list[Placed]]:
    """Every moment that can be the largest of its instant, without what is always there."""
    laid = lay_out(plan)
    unit = max([p.unit.staged for p in laid.positions] + [laid.root.staged])
    forward = list(forward_moments(plan))
    return {
        "load": list(load_moments(plan)),
        "forward": [(site, m) for site, m in forward if site.direction == "forward"],
        "loss": [(site, m) for site, m in forward if site.direction == "loss"],
        "backward": list(backward_moments(plan)),
        "reduce": list(reduce_moments(plan)),
        "step": [(IN_LOOP, {"sharded gradients": 0 if plan.offload else laid.all.shard_gradients})],
        "save": [(OUTSIDE, {"parameters gathered to save": unit if plan.sharded else 0})],
    }


@lru_cache(maxsize=1024)
def placed(plan: Plan) -> Moments:
    """The moments as terms, with what is always there."""
    laid, on_device = lay_out(plan), 0 if plan.offload else 1
    at_load = {
        "quantisation statistics": sum(sharding.per_part(part, lambda p: p.side_bytes) for part in plan.model.parts),
        "model buffers": sharding.model_buffers(plan.model),
    }
    base = {
        "parameter shards": laid.all.shard * on_device,
        **at_load,
        "optimizer states": (laid.states + tables_bytes(plan.dtypes.optimizer)) * on_device,
    }
    return {
        name: tuple(
            (site, (*as_terms(plus(at_load if name == "load" else base, m), AMOUNTS), *_host(plan, name)))
            for site, m in found
        )
        for name, found in moments(plan).items()
    }


def _host(plan: Plan, instant: str) -> tuple[Term, ...]:
    """Host RAM of the node: every rank offloads its own shards and has room for their gradients from the start."""
    laid, ranks = lay_out(plan), plan.node_ranks
    held: dict[str, int] = {}
    if plan.offload:
        held["parameter shards"] = (laid.all.pinned if plan.pinned else laid.all.shard) * ranks
        held["sharded gradients"] = (laid.all.pinned_gradients if plan.pinned else laid.all.shard_gradients) * ranks
        held["optimizer states"] = laid.states * ranks if instant != "load" else 0
    if instant != "load":
        held["step counters"] = laid.host_states * ranks
    if instant == "save":
        held["gathered checkpoint"] = laid.all.whole
    return as_terms(held, HOST_AMOUNTS, "host")
