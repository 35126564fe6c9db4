"""Changes that mend a run that does not fit, the smallest first, each verified by the estimator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from estimators.errors import AdvisorError
from estimators.memory import Estimate
from estimators.model.spec import ModelSpec
from estimators.strategy import Strategy, parse_strategy
from estimators.units import gib
from estimators.values import dataclass, replace
from selector.levers import FURTHER, tried

ENOUGH = 5


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change and what it leads to."""

    changes: Mapping[str, Any]
    says: str
    strategy: str
    expected_bytes: int
    verdict: str


def remedies(found: Estimate, model: ModelSpec, shortage: int = 0) -> tuple[Remedy, ...]:
    """Changes after which the process fits. ``shortage`` is what the log says was missing: where the estimate was too
    small, a change has to save that much as well."""
    limit = min(float(found.gpu.capacity), found.gpu.process.expected - shortage)
    host = found.run.cluster.host_bytes
    made: list[Remedy] = []
    for says, strategy, changes in _candidates(found):
        answer = tried(found, model, strategy, changes)
        if answer is None or answer.gpu.process.expected > limit:
            continue
        if host is not None and answer.host.expected > host:
            continue
        shown = dict(changes) | ({"strategy": strategy.name} if strategy.name != found.strategy else {})
        expected = round(answer.gpu.process.expected)
        line = f"{says}: {gib(expected)} of {gib(answer.gpu.capacity)} GiB"
        made.append(Remedy(shown, line, strategy.name, expected, answer.verdict))
        if len(made) == ENOUGH:
            break
    return tuple(made)


def host_remedies(found: Estimate, model: ModelSpec) -> tuple[Remedy, ...]:
    """Changes that need less host RAM (no more than the node has, where that is known) and still fit the GPU."""
    limit = found.run.cluster.host_bytes or found.host.expected
    made: list[Remedy] = []
    for says, strategy, changes in _host_candidates(found):
        answer = tried(found, model, strategy, changes)
        if answer is None or answer.gpu.process.expected > answer.gpu.capacity:
            continue
        if answer.host.expected >= found.host.expected or answer.host.expected > limit:
            continue
        shown = dict(changes) | ({"strategy": strategy.name} if strategy.name != found.strategy else {})
        line = f"{says}: {gib(answer.host.expected, 0)} instead of {gib(found.host.expected, 0)} GiB of host RAM a node"
        made.append(Remedy(shown, line, strategy.name, round(answer.gpu.process.expected), answer.verdict))
    return tuple(made[:ENOUGH])


def _host_candidates(found: Estimate) -> Iterator[tuple[str, Strategy, dict[str, Any]]]:
    strategy, options = found.run.strategy, dict(found.run.strategy.options)
    if strategy.stage == 3 and options.get("zero_init") is not True:
        yield "zero.Init at load", replace(strategy, options={**options, "zero_init": True}), {}
    if strategy.params and strategy.engine == "deepspeed":
        yield "parameters stay on the GPU", replace(strategy, params=None), {}
    if strategy.optimizer or strategy.params:
        bare = {k: v for k, v in options.items() if k not in ("pin_memory", "ratio")}
        yield "no offload", Strategy(strategy.base, bare), {}
    if found.run.settings.optimizer in ("adamw", "adamw-fused"):
        yield "an 8-bit optimizer", strategy, {"optimizer": "adamw-8bit"}
    if strategy.optimizer == "cpu" and strategy.stage == 3:
        yield "states on NVMe", replace(strategy, optimizer="nvme"), {}
    yield "LoRA", strategy, {"method": "lora"}


def _candidates(found: Estimate) -> Iterator[tuple[str, Strategy, dict[str, Any]]]:
    work, strategy = found.run.workload, found.run.strategy
    if work.checkpointing == "none":
        yield "activation checkpointing", strategy, {"checkpointing": "full"}
    if work.loss == "plain":
        yield "a fused loss", strategy, {"loss": "fused"}
    micro = work.micro_batch
    while micro > 1:
        smaller = micro // 2
        steps = work.grad_accum * work.micro_batch // smaller
        yield (
            f"micro-batch {smaller} with accumulation {steps}",
            strategy,
            {"micro_batch": smaller, "grad_accum": steps},
        )
        micro = smaller
    for name in _further(strategy):
        try:
            yield f"strategy {name}", parse_strategy(name), {}
        except AdvisorError:
            continue
    for length in (work.seq_len // 2, work.seq_len // 4):
        if length >= 256:
            yield f"sequences of {length} tokens", strategy, {"seq_len": length}
    if work.method == "full":
        yield "LoRA", strategy, {"method": "lora"}


def _further(strategy: Strategy) -> Iterator[str]:
    """Strategies that shard or offload more, one step after the other."""
    base: str | None = strategy.base
    tail = f"+optimizer@{strategy.optimizer}" if strategy.optimizer else ""
    while base := FURTHER.get(base or ""):
        yield base + (tail if base.startswith("zero") else "")
    last = next((b for b in ("zero3",) if strategy.engine == "deepspeed"), "")
    if strategy.engine in ("fsdp1", "fsdp2"):
        if not strategy.params:
            yield f"{FURTHER.get(strategy.base, strategy.base)}+params@cpu"
    else:
        last = last or "zero3"
        if not strategy.optimizer:
            yield f"{last}+optimizer@cpu"
        yield f"{last}+optimizer@cpu+params@cpu"
