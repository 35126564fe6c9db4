"""What each engine sends, as integers: formulas V.1-V.9 of ``docs/formulas-time.md``.

A ``Message`` is one collective over one group with the bytes of its *full* buffer; how long it takes is the business
of ``estimators.time.network``. Bytes that one GPU sends follow from ring algorithms (nccl-tests doc/PERFORMANCE.md):
all-gather and reduce-scatter (n - 1) / n of the buffer, all-reduce twice that.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from estimators.model.spec import ModelSpec
from estimators.run import Run
from estimators.units import MIB, ceil_div
from estimators.values import dataclass
from estimators.workload import DTYPE_BYTES

RING_TURNS = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2, "all-to-all": 1}


@dataclass(frozen=True, slots=True)
class Message:
    """One kind of collective of a step.

    ``times`` per optimizer step; ``calls`` it is split into each time; ``phase`` the work that it hides behind:
    ``forward``, ``backward``, or ``step`` where nothing runs beside it. ``stride`` 1 is a group of neighbours;
    ``stride`` g takes one rank of every g.
    """

    name: str
    collective: str
    num_bytes: int
    ranks: int
    times: int
    calls: int
    phase: str
    stride: int = 1

    @property
    def sent_bytes(self) -> int:
        """Bytes that one GPU sends per optimizer step: turns x (n - 1) x ceil(bytes / n) x times."""
        turns = RING_TURNS[self.collective]
        return turns * (self.ranks - 1) * ceil_div(self.num_bytes, self.ranks) * self.times


@dataclass(frozen=True, slots=True)
class Sizes:
    """Elements of a model that engines communicate, once per model and compute dtype."""

    gathered: int  # bytes of all weights as an all-gather moves them: 16-bit, or packed where quantised
    root: int  # of these, the part that FSDP's root unit holds
    elements: int
    trainable: int
    units: int  # blocks and the root


@lru_cache(maxsize=4096)
def sizes(model: ModelSpec, compute_dtype: str) -> Sizes:
    """Llama-2-7B in bf16: ``gathered`` 13_476_831_232 = 2 x 6_738_415_616."""
    width = DTYPE_BYTES[compute_dtype]
    totals = {True: 0, False: 0}
    for part in model.parts:
        one = sum(p.stored_bytes if p.stored_bytes is not None else prod(p.shape) * width for p in part.parameters)
        totals[part.is_block] += one * part.count
    return Sizes(sum(totals.values()), totals[False], model.num_params, model.num_trainable, model.num_layers + 1)


def messages(run: Run) -> tuple[Message, ...]:
    """Everything that one optimizer step communicates; empty on one GPU."""
    if run.ranks == 1:
        return ()
    base = run.strategy.base
    if base in ("ddp", "fsdp1-no-shard", "single"):
        return replicated(run)
    if base == "zero0":
        return _zero0(run)
    return (zero12 if base in ("zero1", "zero2") else zero3 if base == "zero3" else fsdp)(run)


def _grad_bytes(run: Run, dtype: str) -> int:
    return sizes(run.model, run.settings.compute_dtype).trainable * DTYPE_BYTES[dtype]


def replicated(run: Run) -> tuple[Message, ...]:
    """V.1: DDP all-reduces every gradient once per step under no_sync, else once per micro-step.

    7B in fp32 over 8 ranks: 2 x 7/8 x 4 Psi. Source: torch DistributedDataParallel (``bucket_cap_mb`` 25).
    """
    size = _grad_bytes(run, run.settings.reduce_dtype)
    times = run.workload.grad_accum if run.settings.knobs.get("sync_each_batch") else 1
    calls = max(1, ceil_div(size, int(run.settings.knobs.get("bucket_cap_mb", 25)) * MIB))
    return (Message("gradients", "all-reduce", size, run.ranks, times, calls, "backward"),)


def _zero0(run: Run) -> tuple[Message, ...]:
    """V.2: stage 0 all-reduces in buckets at the boundary, after backward."""
    size = _grad_bytes(run, run.settings.reduce_dtype)
    return (Message("gradients", "all-reduce", size, run.ranks, 1, max(1, ceil_div(size, 10**9)), "step"),)


def zero12(run: Run) -> tuple[Message, ...]:
    """V.3: gradients, at the boundary (stage 1) or in every micro-step (stage 2); then an all-gather of parameters.

    The ZeRO paper (arXiv 1910.02054) reduce-scatters: Psi + Psi. DeepSpeed all-reduces whole buckets by default and
    keeps its slice (``use_multi_rank_bucket_allreduce``, stage_1_and_2.py ``allreduce_and_scatter``): 2 Psi + Psi.
    """
    knobs, k = run.settings.knobs, run.workload.grad_accum
    size = _grad_bytes(run, run.settings.reduce_dtype)
    whole = bool(knobs.get("use_multi_rank_bucket_allreduce", True)) or not knobs.get("reduce_scatter", True)
    stage2 = run.strategy.stage == 2
    element = DTYPE_BYTES[run.settings.reduce_dtype]
    buckets = max(1, ceil_div(size, element * int(knobs["reduce_bucket_size"])))
    hidden = bool(knobs.get("overlap_comm")) and (stage2 or k == 1)
    reduce = Message("gradients", "all-reduce" if whole else "reduce-scatter", size, run.ranks,
                     k if stage2 else 1, buckets, "backward" if hidden else "step")  # fmt: skip
    updated = _grad_bytes(run, run.settings.compute_dtype)
    gathers = max(1, ceil_div(updated, DTYPE_BYTES[run.settings.compute_dtype] * int(knobs["allgather_bucket_size"])))
    return (reduce, Message("updated parameters", "all-gather", updated, run.ranks, 1, gathers, "step"))


def zero3(run: Run) -> tuple[Message, ...]:
    """V.4-V.6: all-gather in forward, again in backward, reduce-scatter of gradients; each in every micro-step.

    ZeRO paper: 3 Psi. ZeRO++ (arXiv 2306.10209): int8 gathers (``quantized_weights``), backward gathers inside a group
    (``hpz``), int4 gradients by all-to-all (``quantized_gradients``). MiCS (deepspeed/runtime/zero/mics.py): all of it
    inside a group, and an all-reduce of the shards between groups at the boundary.
    """
    knobs, k, size = run.settings.knobs, run.workload.grad_accum, sizes(run.model, run.settings.compute_dtype)
    ranks, shards = run.ranks, run.shards
    weights = size.gathered
    if knobs.get("quantized_weights"):
        weights = ceil_div(weights, DTYPE_BYTES[run.settings.compute_dtype])
    ahead = int(knobs["prefetch_bucket_size"])
    tensors = sum(part.count * len(part.parameters) for part in run.model.parts)
    calls = max(size.units, ceil_div(size.elements, ahead) if ahead else tensors)  # 0: one by one
    hpz = int(knobs.get("hpz", 1))
    back = min(hpz, ranks) if hpz > 1 else shards
    grads = _grad_bytes(run, run.settings.reduce_dtype)
    buckets = max(1, ceil_div(size.trainable, int(knobs["reduce_bucket_size"])))
    quantised = bool(knobs.get("quantized_gradients"))
    if quantised:
        grads = ceil_div(size.trainable, 2)
    reduce = "all-to-all" if quantised else "reduce-scatter"
    found = [
        Message("parameters, forward", "all-gather", weights, shards, k, calls, "forward"),
        Message("parameters, backward", "all-gather", weights, back, k, calls, "backward"),
        Message("gradients", reduce, grads, shards, k, buckets, "backward"),
    ]
    if shards < ranks:
        found.append(_between(run, grads, 1, "step"))
    return tuple(m for m in found if m.ranks > 1)


def _between(run: Run, grads: int, times: int, phase: str) -> Message:
    """V.7: all-reduce of one shard's gradients over the replicas of a hybrid group."""
    shards = run.shards
    return Message("gradients between replicas", "all-reduce", ceil_div(grads, shards), run.ranks // shards, times,
                   sizes(run.model, run.settings.compute_dtype).units, phase, stride=shards)  # fmt: skip


def fsdp(run: Run) -> tuple[Message, ...]:
    """V.7-V.9: FSDP1 and FSDP2.

    FULL_SHARD gathers in forward and again in backward except for the root unit; SHARD_GRAD_OP gathers once. no_sync
    (the default of stacks when accumulating) reduces in the last micro-step only; FSDP1's SHARD_GRAD_OP then also
    keeps its weights across micro-steps. FSDP paper (arXiv 2304.11277) section 3.2, torch FSDP documentation.
    """
    knobs, k, size = run.settings.knobs, run.workload.grad_accum, sizes(run.model, run.settings.compute_dtype)
    shards, units, sharding = run.shards, size.units, run.strategy.sharding
    syncs = k if knobs.get("sync_each_batch") else 1
    after = knobs.get("reshard_after_forward", True)
    keeps = sharding == "shard-grad-op" or after is False
    once = keeps and run.strategy.engine == "fsdp1" and syncs == 1
    grads = _grad_bytes(run, run.settings.reduce_dtype)
    found = [Message("parameters, forward", "all-gather", size.gathered, shards, 1 if once else k, units, "forward")]
    if not keeps:
        group = min(after, shards) if type(after) is int else shards
        again = size.gathered - size.root
        found.append(Message("parameters, backward", "all-gather", again, group, k, max(1, units - 1), "backward"))
    found.append(Message("gradients", "reduce-scatter", grads, shards, syncs, units, "backward"))
    if shards < run.ranks:
        found.append(_between(run, grads, syncs, "backward"))
    return tuple(m for m in found if m.ranks > 1)
