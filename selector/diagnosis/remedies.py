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
TIGHT = 2  # of changes that are tight: those that fit for certain follow


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change and what it leads to."""

    changes: Mapping[str, Any]
    says: str
    strategy: str
    expected_bytes: int
    verdict: str


def remedies(found: Estimate, model: ModelSpec, shortage: int = 0) -> tuple[Remedy, ...]:
    """Changes after which the process fits, or is tight, which is said; several together where none does alone.

    ``shortage`` is what the log says was missing: where the estimate was too small, a change has to save that much too.
    """
    limit = min(float(found.gpu.capacity), found.gpu.process.expected - shortage)
    made = _smallest(_verified(found, model, _candidates(found), limit))
    if made:
        return made
    several = _smallest(_verified(found, model, _together(found), limit))
    sure = next((at for at, remedy in enumerate(several) if remedy.verdict == "fits"), len(several))
    return several[: sure + 1]


def _verified(
    found: Estimate, model: ModelSpec, candidates: Iterator[tuple[str, Strategy, dict[str, Any]]], limit: float
) -> list[Remedy]:
    made: list[Remedy] = []
    for says, strategy, changes in candidates:
        answer = tried(found, model, strategy, changes)
        if answer is None or answer.gpu.process.expected > limit or answer.verdict == "no":
            continue
        shown = dict(changes) | ({"strategy": strategy.name} if strategy.name != found.strategy else {})
        expected = round(answer.gpu.process.expected)
        line = f"{says}: {gib(expected)} of {gib(answer.gpu.capacity)} GiB{_margin(answer)}"
        made.append(Remedy(shown, line, strategy.name, expected, answer.verdict))
    return made


def _margin(answer: Estimate) -> str:
    """What a tight change leaves open."""
    if answer.verdict == "unknown":
        return f", but {answer.reason}"
    if answer.verdict != "tight":
        return ""
    if answer.gpu.process.high > answer.gpu.capacity:
        return f", but tight: up to {gib(answer.gpu.process.high)} GiB"
    return ", but tight: host RAM may not suffice"


def _smallest(made: list[Remedy]) -> tuple[Remedy, ...]:
    """The first few; tight ones do not crowd out what fits."""
    kept: list[Remedy] = []
    for remedy in made:
        same = sum((other.verdict == "tight") == (remedy.verdict == "tight") for other in kept)
        if len(kept) < ENOUGH and (remedy.verdict != "tight" or same < TIGHT):
            kept.append(remedy)
    return tuple(kept)


def host_remedies(found: Estimate, model: ModelSpec) -> tuple[Remedy, ...]:
    """Changes that need less host RAM (no more than the node has, where that is known) and still fit the GPU."""
    limit = found.run.cluster.host_bytes or found.host.expected
    made: list[Remedy] = []
    for says, strategy, changes in _host_candidates(found):
        answer = tried(found, model, strategy, changes)
        if answer is None or answer.verdict == "no":
            continue
        if answer.host.expected >= found.host.expected or answer.host.expected > limit:
            continue
        shown = dict(changes) | ({"strategy": strategy.name} if strategy.name != found.strategy else {})
        line = f"{says}: {gib(answer.host.expected, 0)} instead of {gib(found.host.expected, 0)} GiB of host RAM a node"
        line += _margin(answer)
        made.append(Remedy(shown, line, strategy.name, round(answer.gpu.process.expected), answer.verdict))
    return _smallest(made)


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


def _together(found: Estimate) -> Iterator[tuple[str, Strategy, dict[str, Any]]]:
    """What each candidate does alone, all at once, under strategies that shard or offload more and more."""
    work = found.run.workload
    steps: list[tuple[str, dict[str, Any]]] = []
    if work.checkpointing == "none":
        steps.append(("activation checkpointing", {"checkpointing": "full"}))
    if work.micro_batch > 1:
        accumulation = work.grad_accum * work.micro_batch
        steps.append(
            (f"micro-batch 1 with accumulation {accumulation}", {"micro_batch": 1, "grad_accum": accumulation})
        )
    if work.loss == "plain":
        steps.append(("a fused loss", {"loss": "fused"}))
    for name in (found.run.strategy.name, *_further(found.run.strategy)):
        for count in range(1, len(steps) + 1):
            says, changes = ", ".join(said for said, _ in steps[:count]), dict[str, Any]()
            for _, change in steps[:count]:
                changes |= change
            try:
                strategy = parse_strategy(name)
            except AdvisorError:
                continue
            yield says if strategy.name == found.strategy else f"strategy {name}, {says}", strategy, changes


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
