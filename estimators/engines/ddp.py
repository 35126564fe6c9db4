"""One process, and DDP: everything whole on every rank.

One optimizer step, as torch 2.13 runs it (torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp):

    load      rank 0's parameters and buffers are broadcast in flat copies of 250 MiB, two in flight
              (``_sync_module_states``); then the gradient buckets are made, all of them, to stay
    forward   parameters and states; registered buffers are broadcast again
    backward  each gradient is copied into its bucket as it appears; with ``gradient_as_bucket_view`` the bucket is the
              gradient and the copy is freed
    reduce    full buckets are all-reduced in place while backward goes on: nothing is added
    step      gradients, states, buckets
    save      the state dict is the parameters themselves

How the buckets are cut (``bucket_cap_mb``, the rebuild in the second step) does not change their sum. The 16-bit
weights that autocast caches are the network's, not the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from estimators.engines import sharding
from estimators.engines.sharding import Amount, Dtypes, Moments, Placed, as_terms
from estimators.model.spec import ModelSpec, Parameter
from estimators.optimizers import tables_bytes
from estimators.result import Term
from estimators.run import Run
from estimators.sites import END, IN_LOOP, OUTSIDE, START, Site
from estimators.units import MIB
from estimators.values import NamedTuple
from estimators.workload import DTYPE_BYTES

BROADCAST_BYTES = 250 * MIB  # distributed.py: broadcast_bucket_size
_BEHIND = Site("backward", START, 0, "before")  # all blocks
BROADCASTS_IN_FLIGHT = 2  # torch/csrc/distributed/c10d/comm.cpp: broadcast_coalesced
INT32 = 4

USED_MAP = "4 bytes a trainable tensor, on the device and on the host (static_graph, find_unused_parameters)"

AMOUNTS = {
    "parameters": Amount("params", "all parameters in the stored dtype"),
    "model buffers": Amount("buffers", "registered buffers"),
    "broadcast copies": Amount("buffers", "flat copies of what rank 0 sends, up to two of 250 MiB and a tensor"),
    "gradient buckets": Amount("buffers", "a copy of every gradient, made at construction and kept"),
    "gradients in buckets": Amount("gradients", "the buckets, of which the gradients are views"),
    "map of used parameters": Amount("buffers", USED_MAP),
    "gradients": Amount("gradients", "trainable parameters in the stored dtype"),
    "arriving gradient": Amount("gradients", "the largest gradient before it is added or copied into its bucket"),
    "parts of a tied gradient": Amount("gradients", "head's and embedding's parts, and their sum, out of place"),
    "optimizer states": Amount("optimizer", "states of each trainable tensor"),
}
HOST_AMOUNTS = {
    "step counters": Amount("optimizer", "optimizer states that always lie in host RAM"),
    "map of used parameters": Amount("buffers", USED_MAP),
}


class Plan(NamedTuple):
    """What decides the bytes, as a key."""

    model: ModelSpec
    dtypes: Dtypes
    distributed: bool
    bucket_view: bool
    maps_used: bool
    accumulates: str  # "", "apart" (no_sync) or "synced"
    node_ranks: int
    casts_head: bool = False  # autocast's cast stands between a tied weight and its product
    feeds_blocks: bool = True  # a gradient flows into the first block


def moments_of(run: Run) -> Moments:
    """Terms of each moment that can be the largest; every rank is the same."""
    return placed(plan_of(run))


def plan_of(run: Run) -> Plan:
    knobs, distributed = run.settings.knobs, run.strategy.engine == "ddp"
    synced = "synced" if knobs.get("sync_each_batch") else "apart"
    return Plan(
        run.model,
        Dtypes.of(run),
        distributed,
        distributed and bool(knobs.get("gradient_as_bucket_view")),
        distributed and bool(knobs.get("static_graph") or knobs.get("find_unused_parameters")),
        synced if run.workload.grad_accum > 1 else "",
        run.cluster.gpus_per_node,
        run.settings.autocast and run.settings.param_dtype == "fp32",
        sharding.input_has_gradient(run),
    )


class Totals(NamedTuple):
    """Sums over the model."""

    parameters: int
    gradients: int
    largest_gradient: int
    tied: int
    trainable_tensors: int
    states: int
    host_states: int
    broadcast: int


def totals(plan: Plan) -> Totals:
    model, dtypes = plan.model, plan.dtypes
    parameters = gradients = largest = tied = tensors = states = host_states = 0
    for part in model.parts:
        for p in part.parameters:
            parameters += part.count * stored_bytes(p, dtypes)
            if not p.trainable:
                continue
            size = p.numel * DTYPE_BYTES[dtypes.stored(p)]
            beside, elsewhere = sharding.state_bytes(p, p.shape, dtypes, model.head)
            gradients += part.count * size
            largest = max(largest, size)
            tied += size if p.name in model.tied.values() else 0
            tensors += part.count
            states += part.count * beside
            host_states += part.count * elsewhere
    tables = tables_bytes(dtypes.optimizer) if tensors else 0
    return Totals(parameters, gradients, largest, tied, tensors, states + tables, host_states, broadcast_copies(plan))


def stored_bytes(parameter: Parameter, dtypes: Dtypes) -> int:
    """As ``Run.bytes_of``."""
    if parameter.stored_bytes is not None:
        return parameter.stored_bytes + parameter.side_bytes
    return parameter.numel * DTYPE_BYTES[dtypes.stored(parameter)]


def broadcast_copies(plan: Plan) -> int:
    """The largest two neighbouring buckets of ``_sync_module_states`` (D.2): a bucket closes when it reaches 250 MiB.

    Tensors of one dtype share a bucket, parameters first, then buffers; buckets follow one another as their first
    tensors do (reducer.cpp, compute_bucket_assignment_by_size). What lies alone in one is sent as it is, without a copy
    (torch/csrc/utils/tensor_flatten.h).
    """
    if not plan.distributed:
        return 0
    closed: list[tuple[int, int, int]] = []  # which tensor is its first, how many it has, bytes
    filling: dict[str, tuple[int, int, int]] = {}
    tensors = 0

    def put(size: int, dtype: str) -> None:
        nonlocal tensors
        first, count, filled = filling.pop(dtype, (tensors, 0, 0))
        tensors += 1
        bucket = (first, count + 1, filled + size)
        if bucket[2] >= BROADCAST_BYTES:
            closed.append(bucket)
        else:
            filling[dtype] = bucket

    for part in plan.model.parts:
        sizes = [(stored_bytes(p, plan.dtypes) - p.side_bytes, plan.dtypes.stored(p)) for p in part.parameters]
        for _ in range(part.count):
            for size, dtype in sizes:
                put(size, dtype)
    put(sharding.model_buffers(plan.model), "fp32")
    buckets = [size if count > 1 else 0 for _, count, size in sorted((*closed, *filling.values()))]
    return max(sum(buckets[at : at + BROADCASTS_IN_FLIGHT]) for at in range(len(buckets)))


@lru_cache(maxsize=1024)
def placed(plan: Plan) -> Moments:
    """The moments of one step, in order: formula D.1 of ``docs/formulas-memory.md``."""
    total, used_map = totals(plan), 0
    if plan.maps_used:
        used_map = INT32 * total.trainable_tensors
    weights = {"parameters": total.parameters, "model buffers": sharding.model_buffers(plan.model)}
    kept = {
        "gradient buckets": total.gradients if plan.distributed and not plan.bucket_view else 0,
        "gradients in buckets": total.gradients if plan.bucket_view else 0,
        "map of used parameters": used_map,
    }
    base = {**weights, **kept, "optimizer states": total.states}
    apart = 0 if plan.bucket_view else total.gradients  # gradients that are not in a bucket
    before = base
    if plan.accumulates:
        # under no_sync even views are gradients of their own, until the last micro-step copies them into the buckets
        before = {**base, "gradients": total.gradients if plan.accumulates == "apart" else apart}
    broadcast = weights["model buffers"] if plan.distributed and plan.accumulates != "apart" else 0
    whole = {**before, "gradients": before.get("gradients", apart)}
    last = {**whole, **_arriving(plan, total)}
    copies = [(OUTSIDE, {**weights, "broadcast copies": total.broadcast})]
    moments: dict[str, list[Placed]] = {
        "load": [(OUTSIDE, {**weights, **kept}), *copies],
        "forward": [(site, {**before, "broadcast copies": broadcast}) for site in _forward_sites(plan)],
        "loss": [(Site("loss", END, 0, "during"), {**before, "broadcast copies": broadcast})],
        "backward": [
            *_growing(plan, before, whole),
            (Site("backward", START, 0, "during"), whole if total.tied and not plan.casts_head else last),
            (Site("backward", START, 0, "after"), last),
        ],
        "reduce": [(_last_bucket(plan), {**base, "gradients": apart, **_closing(plan)})],
        "step": [(IN_LOOP, {**base, "gradients": apart})],
        "save": [(OUTSIDE, {**base, "gradients": apart if plan.accumulates else 0})],
    }
    return {
        name: tuple((site, (*as_terms(m, AMOUNTS), *_host(plan, total, used_map, name))) for site, m in found)
        for name, found in moments.items()
    }


def _host(plan: Plan, total: Totals, used_map: int, instant: str) -> tuple[Term, ...]:
    held = {"map of used parameters": used_map * plan.node_ranks}
    if instant != "load":
        held["step counters"] = total.host_states * plan.node_ranks
    return as_terms(held, HOST_AMOUNTS, "host")


def _forward_sites(plan: Plan) -> list[Site]:
    """The last block of every run: what is saved only grows."""
    runs = enumerate(plan.model.blocks)
    return [Site("forward", number, part.count - 1, "during") for number, part in runs]


def _growing(plan: Plan, before: Mapping[str, int], whole: Mapping[str, int]) -> Iterator[Placed]:
    """The head, then the last and the first block of every run, from the end: gradients pile up behind them.

    Where gradients were kept already, or are views of the buckets, only the one being made is new memory.
    """
    piles_up = not plan.accumulates and not plan.bucket_view
    done, how = 0, "made" if piles_up else "fresh"
    shared = set(plan.model.tied.values())
    number = len(plan.model.blocks)

    def held() -> Mapping[str, int]:
        return {**before, "gradients": done} if piles_up else whole

    yield Site("backward", END, 0, "during", how), held()
    waiting = totals(plan).tied  # the head's part of a tied gradient, in autograd until the embedding's comes
    for part in reversed(plan.model.in_turn):
        sizes = {p.name: p.numel * DTYPE_BYTES[plan.dtypes.stored(p)] for p in part.parameters if p.trainable}
        one = sum(sizes.values())
        if part.is_block:
            number -= 1
            for index in sorted({part.count - 1, 0}, reverse=True):
                behind = held()
                if piles_up:
                    behind = {**behind, "gradients": done + waiting + one * (part.count - 1 - index)}
                yield Site("backward", number, index, "during", how), behind
        done += one * part.count
        waiting -= sum(size for name, size in sizes.items() if name in shared)


def _last_bucket(plan: Plan) -> Site:
    """Where the last gradient completes the last bucket: the embedding's; where that is frozen, in the backward of the
    first block, of the weight that runs first (reducer.cpp, ``autograd_hook``): of the rest of that backward the
    gradient of the block's input is still to be made, if there is one."""
    number = 0
    for part in plan.model.in_turn:
        made = sum(p.numel * DTYPE_BYTES[plan.dtypes.stored(p)] for p in part.parameters if p.trainable)
        if made and part.is_block and plan.feeds_blocks:
            return Site("backward", number, 0, "during", "arrives", made)
        if made:
            break
        number += part.is_block
    return _BEHIND


def _arriving(plan: Plan, total: Totals) -> dict[str, int]:
    """What autograd holds beside finished gradients at the largest moment of backward.

    Where gradients are kept already (earlier micro-steps, bucket views), a new one exists until it has been added or
    copied; else the new one is the gradient. A tied weight's two parts are added out of place (input_buffer.cpp): the
    head's is a transposed view, unless a cast's backward made it anew.
    """
    added = 1 if plan.casts_head else 2
    if not plan.accumulates and not plan.bucket_view:
        return {"parts of a tied gradient": added * total.tied}
    parts = (1 + added) * total.tied
    if parts < total.largest_gradient or (plan.bucket_view and plan.accumulates == "apart"):
        return {"arriving gradient": total.largest_gradient}  # old gradients go as new ones reach the buckets
    return {"parts of a tied gradient": parts}


def _closing(plan: Plan) -> dict[str, int]:
    """The gradient that completes the last bucket, of the embedding: added to a kept one, the engine holds it until the
    reducer's hook returns (torch/csrc/autograd/engine.cpp, ``call_function``: post hooks get the inputs)."""
    if not plan.accumulates or plan.bucket_view or not plan.distributed:
        return {}
    first = plan.model.in_turn[0].parameters[0]
    return {"arriving gradient": first.numel * DTYPE_BYTES[plan.dtypes.stored(first)] if first.trainable else 0}
