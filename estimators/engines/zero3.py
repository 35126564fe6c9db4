"""ZeRO-3: shards of everything, and the parameters that are gathered while modules run.

Source: deepspeed/runtime/zero/stage3.py, parameter_offload.py and partition_parameters.py (0.19.8). ZeRO++ quantised
communication does not run without CUDA: its terms follow the source (csrc quantisation in groups) and are not measured.
MiCS (before 0.19.8) shards everything inside a group of ``Run.shards`` ranks. Formulas Z.5-Z.8 of
``docs/formulas-memory.md``.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate

from estimators.engines.zero_common import ENTERING_HEAD, HEAD, LOSS, Moments, Sizes, Terms, host_term, outside, plus
from estimators.engines.zero_coordinator import Live, Setting, When
from estimators.engines.zero_fetch import Fetched, fetched
from estimators.engines.zero_layout import AFTER, BETWEEN, Spot, buffer_bytes, frozen_bytes, shards, trainable
from estimators.engines.zero_load import adapters_made, load_copy
from estimators.engines.zero_offload import host3, on_gpu
from estimators.engines.zero_reduce import NORM_BYTES
from estimators.engines.zero_views import kept_views
from estimators.model.spec import ModelSpec
from estimators.result import Term
from estimators.run import Run
from estimators.sites import END, IN_LOOP, START, Site
from estimators.units import ceil_div, round_up

QUANTISED_GROUP = 8000  # elements that share one fp32 scale (partition_parameters.py, CUDAQuantizer.target_group_size)


def moments(run: Run) -> Moments:
    """Candidates of each instant."""
    sizes, n = Sizes.of(run), run.shards
    live = fetched(run.model, setting(run))
    small = _persistent(sizes, live, n)
    groups = sub_groups(run.model, n, int(run.settings.knobs["sub_group_size"]))
    fixed = (*_shards(run, sizes, n), *_optimizer(run, sizes, groups), *_gradients(run, sizes, n))
    held = plus(fixed, *_states(run, sizes, groups))

    seen: dict[tuple[int, ...], Terms] = {}  # modules of a block find the same

    def gathered(now: Live, spot: Spot = (END, 0), forward: bool = False) -> Terms:
        key = now.gathered, now.flats, now.gradients, now.secondary
        if (found := seen.get(key)) is None:
            found = seen[key] = plus(held, *_live(run, sizes, n, now, live, small))
        return (*found, *_views(run, sizes, spot, forward))

    forward = [
        (_ahead(run.model, spot, when), gathered(now, spot, True)) for spot, when, now in live.forward if spot[0] != END
    ]
    head = [
        (ENTERING_HEAD if when.stage == "entering" else HEAD, gathered(now))
        for spot, when, now in live.forward
        if spot[0] == END
    ]
    start = (Site("backward", END, 0, "during", "early"), gathered(live.loss))
    return {
        "load": outside(_load(run, sizes, n, groups, fixed)),
        "forward": forward,
        "loss": [(LOSS, gathered(live.loss)), *head],
        "backward": [start, *((_at(spot, when, sizes), gathered(now, spot)) for spot, when, now in live.backward)],
        "reduce": [
            (_reduced_at(spot, when, sizes), plus(held, *terms, *_views(run, sizes, spot, False)))
            for spot, when, now in live.reduce
            for terms in _reduce(run, sizes, n, now, live, small)
        ],
        "step": outside((plus(held, *now) for now in _step(run, sizes, n, groups, small)), IN_LOOP),
        "save": outside([_save(run, sizes, n, held, small)]),
    }


def _ahead(model: ModelSpec, spot: Spot, when: When) -> Site:
    """The place of a moment of forward."""
    part, index = spot
    if index == AFTER and part + 1 < len(model.blocks):
        return Site("forward", part + 1, 0, "before")
    if index == AFTER:
        return Site("forward", part, model.blocks[part].count, "before")
    return Site("forward", part, index, when.stage, module=when.module)


def _reduced_at(spot: Spot, when: When, sizes: Sizes) -> Site:
    """Where a bucket is reduced: a gradient has arrived; behind the head, that of the norm in front of it."""
    return Site("backward", END, 0, "after") if spot[0] == END else _at(spot, when, sizes)


def _at(spot: Spot, when: When, sizes: Sizes) -> Site:
    """The place of a moment of backward: gradients are in the engine's amounts."""
    part, index = spot
    if part == START:
        return Site("backward", START, 0, "before")
    if index == BETWEEN:
        return Site("backward", part, 0, "after")
    if part == END:
        return Site("backward", END, 0, "during", "late")
    if when.stage != "during":
        return Site("backward", part, index, when.stage, module=when.module)
    return Site("backward", part, index, "during", "arrives" if when.arrives else "held", when.made * sizes.element)


def setting(run: Run) -> Setting:
    """The knobs that decide what is gathered."""
    knobs = run.settings.knobs
    return Setting(
        prefetch=int(knobs["prefetch_bucket_size"]),
        max_live=int(knobs["max_live_parameters"]),
        max_reuse=int(knobs["max_reuse_distance"]),
        threshold=int(knobs["param_persistence_threshold"]),
        model_threshold=int(knobs["model_persistence_threshold"]),
        bucket=int(knobs["reduce_bucket_size"]),
        contiguous=bool(knobs["contiguous_gradients"]),
        recompute=run.workload.checkpointing != "none",
        hpz=int(knobs.get("hpz", 1)),
        accumulates=run.workload.grad_accum > 1,
    )


@lru_cache(maxsize=1024)
def sub_groups(model: ModelSpec, ranks: int, size: int) -> tuple[int, ...]:
    """Elements of each sub-group's shard (``_create_fp16_sub_groups``): a group closes when it reaches the size."""
    parts = [ceil_div(numel, ranks) for numel in trainable(model).sizes]
    if size >= sum(parts):
        return (sum(parts),) if parts else ()
    groups, open_ = [], 0
    for index, part in enumerate(parts):
        open_ += part
        if open_ >= size or index == len(parts) - 1:
            groups.append(open_)
            open_ = 0
    return tuple(groups)


# -- what stays ------------------------------------------------------------------------------------------------------


def _shards(run: Run, sizes: Sizes, n: int, staging: bool = True) -> Terms:
    mine, frozen = shards(run.model, n)
    offloaded = bool(run.strategy.params)
    rest = 0 if offloaded else _frozen_shard_bytes(run, n, frozen)
    return (
        Term("parameter shards", "params", 0 if offloaded else mine * sizes.element,
             f"{mine:,} elements, each parameter padded to {n} ranks, x {sizes.element} B"),
        Term("frozen shards", "params", rest, f"1/{n} of what does not train, each parameter padded"),
        _buffers(run, sizes),
        *host3(run, sizes, n, staging),
    )  # fmt: skip


def _buffers(run: Run, sizes: Sizes) -> Term:
    """zero.Init makes every float tensor of a model in the dtype that it trains in, buffers too."""
    narrow = run.settings.knobs.get("zero_init") and sizes.element < 4
    size = buffer_bytes(run.model)
    if narrow:
        each = ((part.count, b) for part in run.model.parts for b in part.buffers)
        size = sum(count * (b.numel * sizes.element if b.dtype == "fp32" else b.bytes) for count, b in each)
    return Term("model buffers", "buffers", size, "registered buffers, whole")


def _frozen_shard_bytes(run: Run, n: int, elements: int) -> int:
    """Shards of frozen parameters: their stored dtype; int8 and scales with quantized_nontrainable_weights."""
    if run.settings.knobs.get("quantized_nontrainable_weights"):
        return elements + 4 * ceil_div(elements, QUANTISED_GROUP)
    return sum(
        part.count * ceil_div(run.bytes_of(p), n)
        if p.stored_bytes is not None
        else part.count * ceil_div(p.numel, n) * (run.bytes_of(p) // max(p.numel, 1))
        for part in run.model.parts
        for p in part.parameters
        if not p.trainable
    )


def _optimizer(run: Run, sizes: Sizes, groups: tuple[int, ...]) -> Terms:
    """Masters: one fp32 tensor a sub-group, in fp32 training too (a device never equals its name: stage3.py
    ``_create_fp32_partitions`` compares the two and so always copies)."""
    here = sum(on_gpu(run, groups))
    grads = here * sizes.master if run.strategy.optimizer else 0
    return (
        Term("master weights", "master", here * sizes.master, f"{here:,} elements of the shard x {sizes.master} B"),
        Term(
            "fp32 gradients", "gradients", grads, f"{here:,} elements that stay on the GPU (ratio) x {sizes.master} B"
        ),
    )


def _states(run: Run, sizes: Sizes, groups: tuple[int, ...]) -> Terms:
    here = on_gpu(run, groups)
    away = groups[len(here) :] if run.strategy.optimizer == "cpu" else ()
    on_host = sizes.state_terms(run, away, "of the shard", True) if away else ()
    return (*(sizes.state_terms(run, here, "of the shard", False) if here else ()), *on_host)


def _gradients(run: Run, sizes: Sizes, n: int) -> Terms:
    bucket = int(run.settings.knobs["reduce_bucket_size"]) if run.settings.knobs["contiguous_gradients"] else 0
    mine = shards(run.model, n)[0]
    flat = 0 if run.strategy.optimizer else mine * sizes.accumulated
    return (
        Term("gradients", "gradients", flat, f"{mine:,} elements of the shard x {sizes.accumulated} B, from the start"),
        Term("reduce bucket", "buffers", bucket * sizes.element,
             f"reduce_bucket_size {bucket:,} x {sizes.element} B, from the start"),
    )  # fmt: skip


def _persistent(sizes: Sizes, live: Fetched, n: int) -> Term:
    padded = sum(round_up(numel, n) for numel in live.persistent)
    return Term("small parameters", "params", padded * sizes.element,
                f"{len(live.persistent)} below the threshold, whole: {padded:,} x {sizes.element} B")  # fmt: skip


def _secondary(run: Run, sizes: Sizes, n: int) -> Terms:
    """hpZ: a second shard, cut inside the group (``_partition_param_sec``); dropped by the step, made in forward."""
    group = int(run.settings.knobs.get("hpz", 1))
    if group <= 1:
        return ()
    elements = sum(part.count * (round_up(p.numel, n) // group) for part in run.model.parts for p in part.parameters)
    return (Term("secondary shards", "params", elements * sizes.element,
                 f"{elements:,} elements, 1/{group} of every parameter, x {sizes.element} B"),)  # fmt: skip


# -- a micro-step ----------------------------------------------------------------------------------------------------


def _live(run: Run, sizes: Sizes, n: int, now: Live, live: Fetched, small: Term) -> Terms:
    gathered = (now.gathered - sum(live.persistent)) * sizes.element
    wire, how = sizes.element, f"x {sizes.element} B"
    if run.settings.knobs.get("quantized_weights"):
        wire, how = 1, "in int8 and a scale for 8,000 elements"
    flat = now.flats * wire + (4 * ceil_div(now.flats, QUANTISED_GROUP) if wire == 1 and sizes.element != 1 else 0)
    second = now.secondary // now.group if now.group > 1 else 0
    return (
        small,
        Term("secondary shards", "params", second * sizes.element,
             f"{second:,} elements, 1/{now.group} of what was released since the step, x {sizes.element} B"),
        Term("gathered parameters", "params", gathered, f"{gathered // sizes.element:,} elements x {sizes.element} B"),
        Term("all-gather output", "temporaries", flat, f"{now.flats:,} elements of prefetched groups {how}"),
        Term("gradients being collected", "gradients", now.gradients * sizes.element,
             f"{now.gradients:,} elements x {sizes.element} B: the one just computed, or larger than the bucket"),
    )  # fmt: skip


def _views(run: Run, sizes: Sizes, spot: Spot, forward: bool) -> Terms:
    kept = kept_views(run, spot, forward)
    how = f"{kept:,} elements of experts let go, of which autograd keeps views, x {sizes.element} B"
    return (Term("weights that autograd keeps", "params", kept * sizes.element, how),) if kept else ()


def _reduce(run: Run, sizes: Sizes, n: int, now: Live, live: Fetched, small: Term) -> list[Terms]:
    shard = ceil_div(now.reduced, n)
    scatter = bool(run.settings.knobs.get("reduce_scatter", True))
    copied = Term("concatenated gradients", "temporaries", now.copied * sizes.element if scatter else 0,
                  f"{now.copied:,} elements of the bucket x {sizes.element} B (reduce_scatter_coalesced)")  # fmt: skip
    wide = shard * sizes.accumulated if sizes.accumulates_fp32 else 0
    upcast = Term("reduced gradients, upcast", "temporaries", wide,
                  f"{shard:,} elements x {sizes.accumulated} B")  # fmt: skip
    here = _live(run, sizes, n, now, live, small)
    if not run.strategy.optimizer:
        return [plus(here, copied, upcast)]
    largest = ceil_div(now.largest, n)
    copy = Term("fp64 copy for the norm", "temporaries", min(largest, 250_000_000) * NORM_BYTES,
                f"{largest:,} elements x 8 B (_constant_buffered_norm2)")  # fmt: skip
    return [plus(here, copied, upcast, copy)]


# -- step ------------------------------------------------------------------------------------------------------------


def _step(run: Run, sizes: Sizes, n: int, groups: tuple[int, ...], small: Term) -> list[Terms]:
    """Small parameters are dropped, sub-groups step one by one, small parameters are gathered again."""
    second = _secondary(run, sizes, n)
    if run.strategy.optimizer:
        return [(small, *second)]
    largest = ceil_div(trainable(run.model).largest, n)
    norm = Term("fp64 copy for the norm", "temporaries", largest * NORM_BYTES, f"{largest:,} elements x 8 B")
    most = max(groups, default=0)
    cat = Term("flattened gradients", "temporaries", most * sizes.accumulated,
               f"{most:,} elements of a sub-group x {sizes.accumulated} B, concatenated")  # fmt: skip
    fp32 = Term("fp32 gradients", "temporaries", most * sizes.master if sizes.master != sizes.accumulated else 0,
                f"{most:,} elements of a sub-group x {sizes.master} B, for the optimizer")  # fmt: skip
    return [(small, *second), (norm, *second), (cat, fp32, *second), (fp32 if fp32.bytes else cat, *second)]


# -- load and save ---------------------------------------------------------------------------------------------------


def _load(run: Run, sizes: Sizes, n: int, groups: tuple[int, ...], fixed: Terms) -> list[Terms]:
    """Partitioning, then masters (each converted, then cloned), then one parameter gathered to find its gradient."""
    parts = _shards(run, sizes, n)
    largest = trainable(run.model).largest
    gathered = Term("one parameter gathered", "params", round_up(largest, n) * sizes.element,
                    f"the largest that trains, {largest:,} x {sizes.element} B, to hook its gradient")  # fmt: skip
    second = _secondary(run, sizes, n)
    candidates = [plus(fixed, gathered, *second), *_partitioning(run, sizes, n)]
    here = on_gpu(run, groups)
    if run.strategy.optimizer == "cpu":
        start = _shards(run, sizes, n, staging=False)
        largest_group = max(groups, default=0)
        buffer = host_term(run, "zero gradients at start", "temporaries", largest_group * sizes.master,
                           f"{largest_group:,} elements of a sub-group x {sizes.master} B", False)  # fmt: skip
        candidates.append(plus(start, *_optimizer(run, sizes, groups), buffer, *second))
    if here and not run.strategy.optimizer:
        before, group = max(zip([0, *accumulate(here)], here, strict=False), key=lambda pair: pair[0] + 2 * pair[1])
        masters = Term(
            "master weights", "master", (before + group) * sizes.master, f"{before + group:,} x {sizes.master} B"
        )
        twice = group * sizes.master if sizes.master != sizes.element else 0
        convert = Term("converted sub-group", "temporaries", twice,
                       f"{group:,} elements x {sizes.master} B, before they are cloned")  # fmt: skip
        zeros = Term("zero gradients at start", "temporaries", max(here) * sizes.master,
                     f"{max(here):,} elements of a sub-group x {sizes.master} B, dropped at once")  # fmt: skip
        all_masters = Term("master weights", "master", sum(here) * sizes.master, f"{sum(here):,} x {sizes.master} B")
        candidates += [plus(parts, masters, convert, *second), plus(parts, all_masters, zeros, *second)]
    return candidates


def _partitioning(run: Run, sizes: Sizes, n: int) -> list[Terms]:
    """Without zero.Init the whole model is there when its first parameter is cut; with it, one parameter is whole."""
    numels = [p.numel for part in run.model.parts for p in part.parameters]
    if not run.settings.knobs.get("zero_init"):
        first = ceil_div(numels[0], n) * sizes.element if not run.strategy.params else 0
        whole = trainable(run.model).numel * sizes.element + frozen_bytes(run)
        return [
            (
                Term("parameters before partitioning", "params", whole, "every parameter whole"),
                Term("first shard", "params", first, f"1/{n} of the first parameter"),
                _buffers(run, sizes),
            ),
            *(plus(now, _buffers(run, sizes)) for now in adapters_made(run, sizes, whole)),
            *load_copy(run, sizes),
        ]
    largest = max(numels)
    return [
        plus(
            _shards(run, sizes, n),
            Term("one parameter whole", "params", largest * sizes.element, f"{largest:,} elements x {sizes.element} B"),
        )
    ]


def _save(run: Run, sizes: Sizes, n: int, held: Terms, small: Term) -> Terms:
    """The 16-bit gather: module by module on the GPU, the whole model in one rank's host RAM."""
    if not run.settings.knobs.get("gather_16bit_on_save"):
        return plus(held, small)
    largest = max(p.numel for part in run.model.parts for p in part.parameters)
    whole = run.model.num_params * sizes.element
    return plus(
        held,
        Term("one module gathered", "params", round_up(largest, n) * sizes.element, f"{largest:,} x {sizes.element} B"),
        Term("gathered model", "params", whole, f"every parameter x {sizes.element} B, rank 0 only", "host"),
    )
