"""Stage 0: DeepSpeed's data parallelism. Nothing is sharded.

Sources: deepspeed/runtime/fp16/{fused,unfused}_optimizer.py and engine.py (``buffered_allreduce_fallback``). 16-bit
training goes through FP16_Optimizer when the optimizer is DeepSpeed's FusedAdam and through FP16_UnfusedOptimizer
otherwise, bf16 too; fp32 through the plain optimizer.
"""

from __future__ import annotations

from functools import lru_cache

from estimators.engines.zero_common import LOSS, Moments, Sizes, Terms, forward_ends, growing, outside, plus
from estimators.engines.zero_layout import frozen_terms, trainable
from estimators.engines.zero_load import load_copy
from estimators.model.spec import ModelSpec
from estimators.result import Term
from estimators.run import Run
from estimators.sites import IN_LOOP, START, Site

ENGINE_BUCKET = 500_000_000  # elements: MEMORY_OPT_ALLREDUCE_SIZE


@lru_cache(maxsize=256)
def largest_bucket(model: ModelSpec) -> int:
    """Elements of the largest flattened bucket: closes above ``ENGINE_BUCKET``; a single tensor is not copied."""
    largest = numel = count = 0
    for size in trainable(model).sizes:
        numel, count = numel + size, count + 1
        if numel > ENGINE_BUCKET:
            largest = max(largest, numel if count > 1 else 0)
            numel = count = 0
    return max(largest, numel if count > 1 else 0)


def moments(run: Run) -> Moments:
    """Candidates of each instant."""
    sizes, layout = Sizes.of(run), trainable(run.model)
    n, e = layout.numel, sizes.element
    fused = run.settings.optimizer_impl == "ds-fused"
    wraps = e < 4  # 16 bit: masters, kept by DeepSpeed's wrapper
    parameters = Term("parameters", "params", n * e, f"{n:,} elements x {e} B, whole")
    master = Term(
        "master weights", "master", n * sizes.master if wraps else 0, f"{n:,} elements x {sizes.master} B, whole"
    )
    gradients = Term("gradients", "gradients", n * e, f"{n:,} elements x {e} B, whole")
    fixed = plus(parameters, frozen_terms(run), master)
    held = plus(fixed, _states(run, sizes, fused and wraps))
    bucket = Term("flattened bucket", "temporaries", largest_bucket(run.model) * e,
                  f"{largest_bucket(run.model):,} elements x {e} B: closes above {ENGINE_BUCKET:,}")  # fmt: skip
    before = plus(held, gradients) if run.workload.grad_accum > 1 else held
    start = Site("backward", START, 0, "before")
    return {
        "load": outside(_load(run, sizes, fixed, held, wraps, fused)),
        "forward": [(site, before) for site in forward_ends(run.model)],
        "loss": [(LOSS, before)],
        "backward": [
            *growing(run.model, before, gradients, run.workload.grad_accum > 1),
            (Site("backward", START, 0, "during"), plus(held, gradients)),
            *((start, terms) for terms in _backward(run, sizes, held, gradients)),
        ],
        "reduce": [(start, plus(held, gradients, bucket))],
        "step": outside(_step(n, sizes, held, gradients, wraps, fused), IN_LOOP),
        "save": outside([held]),
    }


def _backward(run: Run, sizes: Sizes, held: Terms, gradients: Term) -> list[Terms]:
    """A tied weight's gradient comes in two halves that autograd adds: three tensors beside what had accumulated."""
    layout = trainable(run.model)
    if layout.tied < 0:
        return [plus(held, gradients)]
    tied = layout.sizes[layout.tied]
    once = run.workload.grad_accum == 1
    halves = Term("halves of the tied gradient", "gradients", (2 if once else 3) * tied * sizes.element,
                  f"{tied:,} elements x {sizes.element} B each, while autograd adds them")  # fmt: skip
    return [plus(held, gradients, halves)]


def _states(run: Run, sizes: Sizes, flat: bool) -> Terms:
    layout = trainable(run.model)
    return sizes.state_terms(run, (layout.numel,) if flat else layout.sizes, "of every parameter")


def _step(n: int, sizes: Sizes, held: Terms, gradients: Term, wraps: bool, fused: bool) -> list[Terms]:
    if not wraps:
        return [plus(held, gradients)]
    fp32 = Term("fp32 gradients", "temporaries", n * 4, f"{n:,} elements x 4 B, for the optimizer")
    if not fused:
        return [plus(held, gradients, fp32)]
    each = Term(
        "fp32 gradients, one by one", "temporaries", n * 4, f"{n:,} elements x 4 B, before they are concatenated"
    )
    return [plus(held, gradients, each, fp32), plus(held, fp32)]


def _load(run: Run, sizes: Sizes, fixed: Terms, held: Terms, wraps: bool, fused: bool) -> list[Terms]:
    """The wrappers take a first step with zero gradients to make the states (``initialize_optimizer_states``)."""
    candidates = [fixed, *load_copy(run, sizes)]
    if wraps:
        n = trainable(run.model).numel
        each = 4 if fused else 4 + sizes.element  # FP16_UnfusedOptimizer gives the 16-bit parameters theirs too
        zeros = Term(
            "zero gradients of a first step", "temporaries", n * each, f"{n:,} elements x {each} B, dropped at once"
        )
        candidates.append(plus(held, zeros))
    return candidates
