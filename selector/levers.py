"""What would lower the peak most: one change at a time, each answered by asking the estimator again.

The settings keep what is trained, the tokens and the global batch. What a change saves is the difference of two peaks,
so a lever that only lowers the binding instant below the next one counts for no more than that; what it takes off the
binding instant itself stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from estimators.errors import AdvisorError
from estimators.memory import Estimate, estimate
from estimators.model.spec import ModelSpec
from estimators.run import ONLY_EAGER
from estimators.strategy import Strategy, parse_strategy
from estimators.time import StepTime
from estimators.values import dataclass, replace

LEAST = 0.005  # of the peak: what saves less is not worth a line
SMALL = 0.1  # of the engine's own: smaller buffers, more and smaller messages
# Settings of ZeRO whose buffers may be cut: (strategies by stage, knob, what it is called).
BUFFERS = (
    ((1, 2, 3), "reduce_bucket_size", "a gradient bucket"),
    ((1, 2), "allgather_bucket_size", "an all-gather bucket"),
    ((3,), "sub_group_size", "optimizer sub-groups"),
    ((3,), "prefetch_bucket_size", "a prefetch bucket"),
    ((3,), "max_live_parameters", "live parameters"),
)
FURTHER = {"ddp": "zero1", "zero0": "zero1", "zero1": "zero2", "zero2": "zero3", "fsdp1-no-shard": "fsdp1-full-shard",
           "fsdp-shard-grad-op": "fsdp-full-shard", "fsdp1-shard-grad-op": "fsdp1-full-shard"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is done differently: in words, as workload fields, as a strategy."""

    says: str
    strategy: Strategy
    fields: Mapping[str, Any]


@dataclass(frozen=True, eq=False, slots=True)
class Lever:
    """A change and what it does. ``saved_bytes`` of the peak, ``instant_bytes`` of the instant that bound before."""

    says: str
    strategy: str
    changes: Mapping[str, Any]
    saved_bytes: int
    instant_bytes: int
    after: Estimate
    speed: float | None  # tokens a second, as a share of before; None where no time can be given

    def document(self) -> dict[str, Any]:
        """One element of ``levers`` in JSON."""
        return {
            "says": self.says, "strategy": self.strategy, "changes": dict(self.changes),
            "saved_bytes": self.saved_bytes, "instant_bytes": self.instant_bytes,
            "peak_bytes": self.after.peak.gpu_bytes, "peak_instant": self.after.peak.name,
            "host_bytes_per_node": round(self.after.host.expected), "verdict": self.after.verdict, "speed": self.speed,
        }  # fmt: skip


def levers(found: Estimate, model: ModelSpec) -> tuple[Lever, ...]:
    """Every change that lowers the peak, the largest saving first. ``model`` as it was before its method was applied."""
    made = [lever for change in changes(found) if (lever := pulled(found, model, change)) is not None]
    return tuple(sorted(made, key=lambda lever: -lever.saved_bytes))


def pulled(found: Estimate, model: ModelSpec, change: Change) -> Lever | None:
    """What one change saves; None where it is not legal, not modelled, or saves next to nothing."""
    after = tried(found, model, change.strategy, change.fields)
    if after is None:
        return None
    saved = found.peak.gpu_bytes - after.peak.gpu_bytes
    if saved < LEAST * found.peak.gpu_bytes:
        return None
    same = next((i.gpu_bytes for i in after.instants if i.name == found.peak.name), 0)
    return Lever(
        change.says, after.strategy, change.fields, saved, found.peak.gpu_bytes - same, after, _speed(found, after)
    )


def tried(found: Estimate, model: ModelSpec, strategy: Strategy, fields: Mapping[str, Any]) -> Estimate | None:
    """The estimate after a change; None where it is not legal or not modelled."""
    try:
        after = estimate(model, found.run.cluster, strategy, device=found.run.settings.device,
                         workload=replace(found.run.workload, **fields))  # fmt: skip
        after.instants  # noqa: B018 - computes it, so that what is not modelled shows here
        return after
    except AdvisorError:
        return None


def _speed(found: Estimate, after: Estimate) -> float | None:
    if not isinstance(found.time, StepTime) or not isinstance(after.time, StepTime):
        return None
    return after.time.tokens_per_s_per_gpu.expected / found.time.tokens_per_s_per_gpu.expected


def changes(found: Estimate) -> Iterator[Change]:
    """What may be done differently in this run."""
    strategy = found.run.strategy
    for says, fields in _fields(found):
        yield Change(says, strategy, fields)
    for says, options in _options(found):
        yield Change(says, replace(strategy, options={**strategy.options, **options}), {})
    for says, name in _strategies(found):
        yield Change(says, parse_strategy(name), {})


def _fields(found: Estimate) -> Iterator[tuple[str, dict[str, Any]]]:
    """Changes of the workload that keep its tokens."""
    work, settings = found.run.workload, found.run.settings
    if work.checkpointing == "none":
        yield "selective checkpointing", {"checkpointing": "selective"}
        yield "checkpointing of every other block", {"checkpointing": "every-2"}
    if work.checkpointing not in ("full", "offload"):
        yield "full checkpointing", {"checkpointing": "full"}
    if work.checkpointing == "full":
        yield "checkpoints in host RAM", {"checkpointing": "offload"}
    if work.loss == "plain":
        yield "a chunked loss", {"loss": "chunked", "loss_kernel": None}
    if work.loss in ("plain", "chunked"):
        yield "a fused loss", {"loss": "fused", "loss_kernel": None}
    if found.run.model.family in ONLY_EAGER and found.run.attention == "eager":
        yield "flash attention in place of eager", {"attention": "flash"}
    elif work.attention == "eager":
        yield "SDPA in place of eager attention", {"attention": "sdpa"}
    if settings.optimizer == "adamw":
        yield "the fused optimizer", {"optimizer": "adamw-fused"}
    if settings.optimizer in ("adamw", "adamw-fused", "paged-adamw"):
        yield "8-bit optimizer states", {"optimizer": "adamw-8bit"}
    if work.micro_batch > 1:
        smaller = work.micro_batch // 2 if work.micro_batch % 2 == 0 else 1
        steps = work.grad_accum * (work.micro_batch // smaller)
        yield f"micro-batch {smaller} x accumulation {steps}", {"micro_batch": smaller, "grad_accum": steps}


def _options(found: Estimate) -> Iterator[tuple[str, dict[str, Any]]]:
    """Changes of the engine's settings."""
    strategy, knobs = found.run.strategy, found.run.settings.knobs
    for stages, knob, says in BUFFERS:
        if strategy.engine == "deepspeed" and strategy.stage in stages:
            value = max(1, int(int(knobs[knob]) * SMALL))
            yield f"{says} of {value:,} elements", {knob: value}
    if strategy.base in ("zero1", "zero2", "zero3") and knobs.get("overlap_comm"):
        yield "no overlap of reduction: one bucket", {"overlap_comm": False}
    if strategy.base == "ddp" and not knobs.get("gradient_as_bucket_view"):
        yield "gradients as views of the buckets", {"gradient_as_bucket_view": True}
    if strategy.engine in ("fsdp1", "fsdp2"):
        if knobs.get("wrap") == "blocks":
            yield "embedding and head as units of their own", {"wrap": "blocks+embedding+head"}
        if found.run.workload.grad_accum > 1 and not knobs.get("sync_each_batch"):
            yield "reduction in every micro-step", {"sync_each_batch": True}


def _strategies(found: Estimate) -> Iterator[tuple[str, str]]:
    """One step further in sharding, and offload of what is not offloaded yet."""
    strategy = found.run.strategy
    further = FURTHER.get(strategy.base)
    tail = f"+optimizer@{strategy.optimizer}" if strategy.optimizer else ""
    if further:
        yield f"sharding as {further}", further + (tail if further.startswith("zero") else "")
    options = ",".join(f"{k}={str(v).lower()}" for k, v in strategy.options.items())
    base = f"{strategy.base}:{options}" if options else strategy.base
    if strategy.engine in ("fsdp1", "fsdp2"):
        if not strategy.params:
            yield "parameters and optimizer in host RAM", f"{base}+params@cpu"
    elif strategy.engine != "deepspeed":
        yield "ZeRO-2 with the optimizer in host RAM", "zero2+optimizer@cpu"
    elif not strategy.optimizer:
        yield "the optimizer in host RAM", f"{base}+optimizer@cpu"
    elif strategy.stage == 3 and not strategy.params:
        yield "parameters in host RAM too", f"{base}+optimizer@{strategy.optimizer}+params@cpu"
