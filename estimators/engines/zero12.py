"""ZeRO-1 and ZeRO-2: whole parameters, a share of masters and states, gradients that shrink during backward.

Sources: deepspeed/runtime/zero/stage_1_and_2.py and, for stage 1 with bf16 and fp32 accumulation,
deepspeed/runtime/bf16_optimizer.py (0.19.8). Every instant is what that code holds at its largest moment.
Formulas Z.1-Z.4 of ``docs/formulas-memory.md``.
"""

from __future__ import annotations

from functools import lru_cache

from estimators.engines.zero_common import LOSS, Moments, Sizes, forward_ends, growing, load_copy, outside, plus, total
from estimators.engines.zero_layout import BETWEEN, Partition, frozen_terms, owned, partition, trainable
from estimators.engines.zero_offload import accumulated12, staging12
from estimators.engines.zero_reduce import NORM_BYTES, Held, Rules, collect
from estimators.model.spec import ModelSpec
from estimators.result import Term
from estimators.run import Run
from estimators.sites import IN_LOOP, START, Site


def moments(run: Run) -> Moments:
    """Candidates of each instant, largest engine-held set first known at the end of ``zero.hold``."""
    sizes = Sizes.of(run)
    if run.strategy.stage == 1 and not run.strategy.optimizer and sizes.compute == "bf16" and sizes.accumulates_fp32:
        return _bf16_optimizer(run, sizes)
    share = partition(run.model, run.ranks, _dealt_to(run))
    fixed = (*_parameters(run, sizes, share), *_master(run, sizes, share))
    more = accumulated12(run, sizes, share) if run.strategy.optimizer else ()
    held = plus(fixed, *_states(run, sizes, share), *more)
    rules = _rules(run, sizes)
    found = collect(run.model, run.ranks, rules)
    before = plus(held, *_carried(run, sizes, share))
    arriving = trainable(run.model).tied < 0 and not rules.at_the_end
    return {
        "load": outside(_load(run, sizes, share, fixed)),
        "forward": [(site, before) for site in forward_ends(run.model)],
        "loss": [(LOSS, before)],
        "backward": [
            (at(h, sizes.element, arriving), plus(held, *_backward(run, sizes, share, rules, h)))
            for h in found.backward
        ],
        "reduce": [
            (reduced_at(h, sizes.element), plus(held, *_reduce(run, sizes, share, rules, h))) for h in found.reduce
        ],
        "step": outside((plus(held, *now) for now in _step(run, sizes, share)), IN_LOOP),
        "save": outside([held]),
    }


def at(held: Held, element: int, arriving: bool = False) -> Site:
    """The place of a moment of backward; behind the first block nothing of the network is left, but where the last
    gradient is just arriving, before hooks get it, what it is made of."""
    part, index = held.spot
    if index == BETWEEN:
        return Site("backward", part, 0, "after", held.how)
    stage = "before" if part == START and not arriving else "during"
    return Site("backward", part, index, stage, held.how, held.made * element if held.made >= 0 else -1)


def reduced_at(held: Held, element: int) -> Site:
    """A bucket is reduced when a gradient arrives that does not fit, never between two of them."""
    found = at(held, element)
    return found._replace(gradients="arrives") if held.how == "late" else found


# -- what stays ------------------------------------------------------------------------------------------------------


def _parameters(run: Run, sizes: Sizes, share: Partition) -> tuple[Term, ...]:
    flat = Term(
        "parameters", "params", share.aligned * sizes.element,
        f"{share.aligned:,} elements ({trainable(run.model).numel:,} padded to 2 x ranks) x {sizes.element} B, whole",
    )  # fmt: skip
    return (flat, *frozen_terms(run))


def _master(run: Run, sizes: Sizes, share: Partition) -> tuple[Term, ...]:
    if run.strategy.optimizer:
        return staging12(run, sizes, share)
    return (
        Term("master weights", "master", share.share * sizes.master,
             f"{share.share:,} elements of this rank's share x {sizes.master} B"),
    )  # fmt: skip


def _states(run: Run, sizes: Sizes, share: Partition) -> tuple[Term, ...]:
    return sizes.state_terms(run, (share.share,), "of this rank's share")


# -- gradients -------------------------------------------------------------------------------------------------------


def _rules(run: Run, sizes: Sizes) -> Rules:
    knobs, stage1 = run.settings.knobs, run.strategy.stage == 1
    offload, compact = bool(run.strategy.optimizer), sizes.accumulates_fp32
    return Rules(
        bucket=int(knobs["reduce_bucket_size"]),
        element=sizes.accumulated if stage1 else sizes.element,
        contiguous=bool(knobs["contiguous_gradients"]) or offload,
        scatter=bool(knobs["reduce_scatter"]),
        loaded=stage1 and (not knobs["overlap_comm"] or run.workload.grad_accum > 1),
        at_the_end=stage1 and not knobs["overlap_comm"],
        accumulates=run.workload.grad_accum > 1,
        keeps_others=stage1,
        pieces=not offload and not compact,
        compact=compact,
        dealt_to=_dealt_to(run),
        offload=offload,
    )


def _dealt_to(run: Run) -> int:
    return run.ranks if run.settings.knobs["round_robin_gradients"] else 1


def _bucket(run: Run, rules: Rules) -> Term:
    count = 2 if run.settings.knobs["overlap_comm"] else 1
    return Term(
        "reduce bucket", "buffers", count * rules.bucket * rules.element if rules.contiguous else 0,
        f"{count} x reduce_bucket_size {rules.bucket:,} x {rules.element} B, from the first gradient on",
    )  # fmt: skip


def _flat_gradients(sizes: Sizes, share: Partition) -> Term:
    return Term("gradients", "gradients", share.share * sizes.accumulated,
                f"{share.share:,} elements of this rank's share x {sizes.accumulated} B, one flat buffer")  # fmt: skip


def _pieces(share: Partition, sizes: Sizes, padding: bool = True) -> Term:
    """Gradients after backward: every parameter that the worst rank's share touches, whole, and its padding."""
    elements = max(
        (p + (pad if padding else 0)) if touched else s
        for p, pad, touched, s in zip(
            share.pieces, share.padding, share.touched, [share.share] * len(share.pieces), strict=True
        )
    )
    return Term("gradients", "gradients", elements * sizes.element,
                f"{elements:,} elements x {sizes.element} B: whole parameters of the worst share")  # fmt: skip


def _carried(run: Run, sizes: Sizes, share: Partition) -> tuple[Term, ...]:
    """Gradients of earlier micro-steps, alive in the last forward."""
    if run.workload.grad_accum == 1:
        return ()
    if run.strategy.stage == 1:
        rules = _rules(run, sizes)
        numel = trainable(run.model).numel
        whole = Term("gradients", "gradients", numel * rules.element,
                     f"{numel:,} elements x {rules.element} B, whole through accumulation")  # fmt: skip
        return (whole, _bucket(run, rules))
    if sizes.accumulates_fp32:
        return (_flat_gradients(sizes, share),)
    return () if run.strategy.optimizer else (_pieces(share, sizes, padding=False),)


def _backward(run: Run, sizes: Sizes, share: Partition, rules: Rules, found: Held) -> tuple[Term, ...]:
    gradients = Term(
        "gradients", "gradients", found.gradients * rules.element,
        f"{found.gradients:,} elements x {rules.element} B: "
        + ("whole until they are reduced" if rules.loaded else "those of this rank's share, and the one just computed"),
    )  # fmt: skip
    bucket = (_bucket(run, rules),) if found.has_bucket else ()
    return (gradients, *bucket, *_accumulated(run, sizes, share, rules))


def _reduce(run: Run, sizes: Sizes, share: Partition, rules: Rules, found: Held) -> tuple[Term, ...]:
    gradients = Term("gradients", "gradients", found.gradients * rules.element,
                     f"{found.gradients:,} elements x {rules.element} B outside the bucket")  # fmt: skip
    copies = Term("flattened bucket", "temporaries", found.copies,
                  "slices of one bucket, copied into one tensor to be reduced (allreduce_bucket)")  # fmt: skip
    return (gradients, _bucket(run, rules), copies, *_accumulated(run, sizes, share, rules))


def _accumulated(run: Run, sizes: Sizes, share: Partition, rules: Rules) -> tuple[Term, ...]:
    """Beside the gradients of this micro-step: the flat fp32 buffer, or the pieces of earlier micro-steps."""
    if rules.compact:
        flat = _flat_gradients(sizes, share)
        return (Term("accumulated gradients", "gradients", flat.bytes, flat.formula),)
    if run.workload.grad_accum == 1 or run.strategy.stage == 1 or rules.offload:
        return ()
    pieces = _pieces(share, sizes, padding=False)
    return (Term("accumulated gradients", "gradients", pieces.bytes, pieces.formula + ", of earlier micro-steps"),)


# -- step ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _step_rank(model: ModelSpec, ranks: int, dealt_to: int, element: int, master: int) -> tuple[int, int, int, int]:
    """Of the worst rank: gradient pieces, largest own slice, flattened copy (elements), whether the norm is larger."""
    layout, share = trainable(model, dealt_to), partition(model, ranks, dealt_to)
    best, found = -1, (0, 0, 0, 0)
    for rank in range(ranks):
        first, last = owned(layout, share.share, rank)
        begin, end = rank * share.share, (rank + 1) * share.share
        inner = layout.sizes[first + 1 : last - 1]
        ends = [
            min(layout.ends[i], end) - max(layout.ends[i] - layout.sizes[i], begin) for i in {first, last - 1} if i >= 0
        ]
        slice_ = max([*ends, max(inner, default=0)]) if last > first else 0
        held = share.pieces[rank] + share.padding[rank] if last > first else share.share
        tensors = last - first + (share.padding[rank] > 0 and last > first)
        flattened = share.share if tensors > 1 else 0
        copy = flattened * element + (share.share * master if master != element else 0)
        size = held * element + max(copy, slice_ * NORM_BYTES)
        if size > best:
            best, found = size, (held, slice_, flattened, rank)
    return found


def _step(run: Run, sizes: Sizes, share: Partition) -> list[tuple[Term, ...]]:
    """The norm, the fp32 copy of the share's gradients, the optimizer (``step``, steps 2 and 3 of its comments)."""
    if run.strategy.optimizer:
        return [()]
    fp32 = Term("fp32 gradients", "temporaries", share.share * sizes.master,
                f"{share.share:,} elements of the share x {sizes.master} B, for the optimizer")  # fmt: skip
    if sizes.accumulates_fp32:
        flat = _flat_gradients(sizes, share)
        largest = _step_rank(run.model, run.ranks, _dealt_to(run), sizes.element, sizes.master)[1]
        return [(flat, _norm_copy(largest))]
    held, largest, flattened, _ = _step_rank(run.model, run.ranks, _dealt_to(run), sizes.element, sizes.master)
    pieces = Term("gradients", "gradients", held * sizes.element,
                  f"{held:,} elements x {sizes.element} B: whole parameters that the share touches")  # fmt: skip
    cat = Term("flattened gradients", "temporaries", flattened * sizes.element,
               f"{flattened:,} elements of the share x {sizes.element} B, concatenated")  # fmt: skip
    copied = (pieces, cat, fp32) if sizes.master != sizes.element else (pieces, cat)
    return [(pieces, _norm_copy(largest)), copied, (fp32,)]


def _norm_copy(elements: int) -> Term:
    return Term("fp64 copy for the norm", "temporaries", elements * NORM_BYTES,
                f"{elements:,} elements, the largest slice, x 8 B (get_norm_dtype)")  # fmt: skip


# -- load ------------------------------------------------------------------------------------------------------------


def _load(run: Run, sizes: Sizes, share: Partition, fixed: tuple[Term, ...]) -> list[tuple[Term, ...]]:
    """Flattening holds two copies; then come masters and a zero gradient for each (``initialize_optimizer_states``)."""
    numel = trainable(run.model).numel
    parameters = fixed[0]
    original = Term("parameters before flattening", "params", numel * sizes.element,
                    f"{numel:,} elements x {sizes.element} B, copied into the flat group")  # fmt: skip
    flattening = plus(frozen_terms(run), original, parameters)
    candidates = [fixed, *load_copy(run, sizes)]
    if sizes.fits_twice(run, total(flattening), parameters.bytes):
        candidates.append(flattening)
    if not run.strategy.optimizer:
        zeros = Term("zero gradients at start", "temporaries", share.share * sizes.master,
                     f"{share.share:,} elements of the share x {sizes.master} B, dropped at once")  # fmt: skip
        candidates.append(plus(fixed, zeros))
    return candidates


# -- stage 1 with bf16 and fp32 accumulation -------------------------------------------------------------------------


def _bf16_optimizer(run: Run, sizes: Sizes) -> Moments:
    """BF16_Optimizer: an fp32 gradient for every parameter, always; bf16 gradients from backward to the step."""
    share, numel = partition(run.model, run.ranks), trainable(run.model).numel
    flat = Term(
        "fp32 gradients", "gradients", share.aligned * 4, f"{share.aligned:,} elements x 4 B, whole, from the start"
    )
    lp = Term(
        "gradients", "gradients", numel * sizes.element, f"{numel:,} elements x {sizes.element} B, until the step"
    )
    wire = Term("gradients on the wire", "temporaries", share.aligned * sizes.element,
                f"{share.aligned:,} elements x {sizes.element} B (engine.allreduce_bucket)")  # fmt: skip
    fixed = (*_parameters(run, sizes, share), *_master(run, sizes, share), flat)
    held = plus(fixed, *_states(run, sizes, share))
    largest = trainable(run.model).largest
    one = Term("fp32 copy of one gradient", "temporaries", largest * 4, f"{largest:,} elements x 4 B (_update_hp_grad)")
    numel_before = Term("parameters before flattening", "params", numel * sizes.element,
                        f"{numel:,} elements x {sizes.element} B, copied into the flat group")  # fmt: skip
    before = plus(held, lp) if run.workload.grad_accum > 1 else held
    start = Site("backward", START, 0, "before")
    return {
        "load": outside([fixed, plus(frozen_terms(run), numel_before, fixed[0]), *load_copy(run, sizes)]),
        "forward": [(site, before) for site in forward_ends(run.model)],
        "loss": [(LOSS, before)],
        "backward": [*growing(run.model, before, lp, run.workload.grad_accum > 1), (start, plus(held, lp, one))],
        "reduce": [(start, plus(held, lp, wire))],
        "step": outside([plus(held, lp)], IN_LOOP),
        "save": outside([held]),
    }
