"""Everything of a run that takes time, as amounts without rates: what ``estimators.time.phases`` divides by rates."""

from __future__ import annotations

from functools import lru_cache

from estimators.run import Run
from estimators.time.constants import LOGIT_BYTES
from estimators.time.flops import Flops, micro_flops
from estimators.time.network import Three, Wires, total, wires
from estimators.time.offload import Offload, offload
from estimators.time.optimizer_step import is_fused, muon_flops, step_bytes
from estimators.time.towers import streams
from estimators.time.traffic import Traffic, traffic
from estimators.time.volumes import Message, messages
from estimators.values import dataclass


@dataclass(frozen=True, slots=True)
class Sent:
    """Messages by when they happen: each micro-step's forward and backward, the first forward only, the last backward
    only, beside nothing; ``total`` of the whole step, for what waits (N.4)."""

    forward: Wires
    backward: Wires
    once: Wires
    last: Wires
    step: Wires
    total: Wires


WHEN = ("forward", "backward", "once", "last", "step", "total")
NOTHING = Wires()
SILENT = Sent(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)


@dataclass(frozen=True, slots=True)
class Amounts:
    """FLOPs, bytes and messages of a step on one GPU."""

    micro_steps: int
    tokens: int  # per step
    flops: Flops  # per micro-step
    expert_share: float  # of products, by routed experts
    traffic: Traffic
    logit_bytes: Three
    compiled: bool
    gptq: bool
    kernels: int  # launches of a forward pass, in products
    fetches: int  # modules that ZeRO-3 fetches one by one in a pass
    sent: Sent
    optimizer_bytes: float
    optimizer_flops: float
    fused: bool
    offload: Offload
    model_flops: float
    hardware_flops: float
    notes: tuple[str, ...]


@lru_cache(maxsize=2048)
def amounts(run: Run) -> Amounts:
    """The amounts of a run."""
    load, passing = run.workload, streams(run)
    work, calls = passing.streams[0].work, sum(stream.work.calls for stream in passing.streams)
    flops, k = micro_flops(run), load.grad_accum
    return Amounts(
        k, k * load.micro_batch * passing.streams[0].rows * passing.streams[0].length, flops,
        work.expert_products / work.products if work.products else 0.0, traffic(run),
        logit_bytes(load.loss, load.loss_kernel), load.compile, load.quant == "gptq4", calls,
        calls if run.strategy.base == "zero3" else 0, _sent(messages(run), k, run.cluster.gpus_per_node),
        step_bytes(run), muon_flops(run), is_fused(run), offload(run), k * flops.model, k * flops.hardware,
        _notes(run, passing.notes),
    )  # fmt: skip


def _sent(found: tuple[Message, ...], micro_steps: int, per_node: int) -> Sent:
    if not found:
        return SILENT
    sums: dict[str, list[tuple[Wires, int]]] = {name: [] for name in WHEN}
    for message in found:
        one, when = wires(message, per_node), message.phase
        sums["total"].append((one, message.times))
        if when != "step" and message.times < micro_steps:
            when = "once" if when == "forward" else "last"
        sums[when].append((one, message.times if when == "step" else 1))
    return Sent(*(total(sums[name]) for name in WHEN))


def _notes(run: Run, found: tuple[str, ...]) -> tuple[str, ...]:
    if run.settings.optimizer == "muon" and run.strategy.engine == "fsdp2" and run.shards > 1:
        return (*found, "muon: every rank of FSDP2 is taken to orthogonalise whole matrices, the slow side")
    return found


@lru_cache(maxsize=64)
def logit_bytes(loss: str, kernel: str | None) -> Three:
    """T.6: bytes moved per logit: fast, expected, slow."""
    kind = LOGIT_BYTES[kernel or loss]
    return kind.low, kind.value, kind.high
