"""A pasted log and what is known of the run -> what went wrong, at which instant, and the smallest changes that mend it.

    diagnose(log, model="qwen2.5-72b", cluster="2x8xA100-80GB", configs=["ds.json"]).causes[0].title

Nothing is guessed: where no message is recognised the kind is ``unknown``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimators.cluster import Cluster, parse_cluster
from estimators.errors import AdvisorError
from estimators.memory import Estimate, estimate
from estimators.model import resolve_model
from estimators.model.spec import ModelSpec
from estimators.units import gib, readable
from selector.checks.files import groups
from selector.checks.machine import Machine
from selector.checks.rules import RULES
from selector.checks.run import check, read
from selector.checks.setup import Setup
from selector.diagnosis.oom import OutOfMemory, out_of_memory
from selector.diagnosis.remedies import Remedy, remedies
from selector.diagnosis.signatures import CONFIG, HOST, SIGNATURES, instant_of
from selector.diagnosis.sizes import Match, matches

MAX_LINES, MAX_LINE = 50_000, 2_000
_BATCH = re.compile(r"\b(\d{1,9}) != (\d{1,9}) \* (\d{1,9}) \* (\d{1,9})\b")
_WORLD = re.compile(r"\bworld[_ ]size['\"]?\s*[:=]\s*(\d{1,6})|nproc[_-]per[_-]node[= ](\d{1,4})", re.IGNORECASE)
OOM, UNKNOWN = "gpu-oom", "unknown"


@dataclass(frozen=True, slots=True)
class Cause:
    """One explanation. ``rule`` is a rule of ``check`` where one covers it; ``line`` counts from 1 in the log."""

    rule: str
    title: str
    because: str
    fix: str
    source: str = ""
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``kind`` is gpu-oom, host-kill, config-error, nccl, build, engine-error or unknown."""

    kind: str
    instant: str | None = None
    causes: tuple[Cause, ...] = ()
    oom: OutOfMemory | None = None
    matches: tuple[Match, ...] = ()
    estimate: Estimate | None = None
    remedies: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = field(default=())


def diagnose(
    log: str,
    *,
    configs: Sequence[str | Path] = (),
    model: Any = None,
    cluster: str | Cluster | None = None,
    strategy: str | None = None,
    **fields: Any,
) -> Diagnosis:
    """What a log means for this run. Raises the errors of ``estimators.errors`` for model, cluster and files."""
    lines = [line[:MAX_LINE] for line in log.splitlines()[:MAX_LINES]]
    spec = resolve_model(model) if model is not None else None
    where = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    setup, notes = _setup(configs, spec, where, fields)
    found = _estimate(setup, spec, where, strategy, fields, notes)
    message = out_of_memory("\n".join(lines))
    if message is not None:
        return _gpu(lines, message, spec, where, found, notes)
    causes = [*_batch(lines, where), *_signed(lines, found)]
    if setup is not None and causes:
        causes += _configured(setup, causes)
    kind = next((kind for kind, _ in map(_kind_of, causes)), UNKNOWN) if causes else UNKNOWN
    mends = remedies(found, spec) if kind == HOST and found is not None and spec is not None else ()
    return Diagnosis(kind, "load" if kind == HOST and _loads(lines) else None, tuple(causes), estimate=found,
                     remedies=mends, notes=tuple(notes))  # fmt: skip


def _setup(
    configs: Sequence[str | Path], model: ModelSpec | None, cluster: Cluster | None, fields: dict[str, Any]
) -> tuple[Setup | None, list[str]]:
    for group in groups(configs) if configs else ():
        reading, hits = read(group, cluster)
        notes = [f"{hit.where}: {hit.message}" for hit in hits]
        setup = Setup(ds=group.ds, accel=group.accel, args=group.args, script=group.script, reading=reading, model=model,
                      cluster=cluster, fields=fields, machine=Machine())  # fmt: skip
        return setup, notes
    return None, []


def _estimate(
    setup: Setup | None, model: ModelSpec | None, cluster: Cluster | None, strategy: str | None,
    fields: dict[str, Any], notes: list[str],
) -> Estimate | None:  # fmt: skip
    if model is None or cluster is None:
        notes.append("give --model and --gpus: then sizes are compared with the estimate and changes are verified")
        return None
    if setup is not None and strategy is None:
        return setup.estimate
    if strategy is None:
        notes.append("give --config or --strategy: then the estimate of the run is compared")
        return None
    try:
        found = estimate(model, cluster, strategy, **fields)
        found.instants  # noqa: B018 - computes it
        return found
    except AdvisorError as error:
        notes.append(str(error))
        return None


# --------------------------------------------------------------------------------------------------------- GPU memory


def _gpu(
    lines: list[str], message: OutOfMemory, model: ModelSpec | None, cluster: Cluster | None, found: Estimate | None,
    notes: list[str],
) -> Diagnosis:  # fmt: skip
    ranks = cluster.ranks if cluster else _ranks(lines)
    at = next((i for i, line in enumerate(lines) if "out of memory" in line), 0)
    framed = instant_of(lines, at)
    same = matches(message.tried, model, ranks, found, framed)
    instant = framed or next((m.instant for m in same if m.instant), None)
    causes = tuple(_explained(message, same, instant, found, at + 1))
    short = message.shortage if found is not None and found.gpu.process.expected < found.gpu.capacity else 0
    mends = remedies(found, model, short) if found is not None and model is not None else ()
    return Diagnosis(OOM, instant, causes, message, same, found, mends, tuple(notes))


def _explained(
    message: OutOfMemory, same: Sequence[Match], instant: str | None, found: Estimate | None, line: int
) -> Iterator[Cause]:
    tried = readable(message.tried)
    if message.is_fragmented:
        waste = gib(message.unallocated or 0)
        yield Cause("alloc-conf", "fragmentation", f"{tried} were asked for while {waste} GiB lay reserved and unused",
                    RULES["alloc-conf"].fix, RULES["alloc-conf"].source, line)  # fmt: skip
    if message.others > message.shortage > 0:
        yield Cause("", "another process on the card", f"other processes hold {gib(message.others)} GiB of it",
                    "end them, or choose another card with CUDA_VISIBLE_DEVICES", "", line)  # fmt: skip
    for match in same[:1]:
        where = f" ({match.instant})" if match.instant else ""
        yield Cause("", f"the failed allocation is {match.name}", f"{tried} = {match.formula}{where}",
                    _advice(match, instant), "", line)  # fmt: skip
    if instant == "step":
        rule = RULES["first-step-peak"]
        yield Cause(rule.name, "the optimizer step", rule.trigger, rule.fix, rule.source, line)
    if found is not None and found.verdict == "no":
        yield Cause("does-not-fit", f"{found.strategy} does not fit",
                    f"the estimate is {gib(found.gpu.process.expected)} GiB at {found.peak.name} on a card of "
                    f"{gib(found.gpu.capacity)}", "one of the changes below", "", line)  # fmt: skip
    elif found is not None and not message.is_fragmented:
        yield Cause("", "the estimate fits", f"{gib(found.gpu.process.expected)} of {gib(found.gpu.capacity)} GiB are expected: "
                    "the run is not the one described, or something else holds memory",
                    "compare batch, sequence length and strategy with the run; look at nvidia-smi", "", line)  # fmt: skip
    if not same and found is None and not message.is_fragmented:
        yield Cause("", "unknown tensor", f"{tried} match no amount that is known here", "give --config, --model and --gpus",
                    "", line)  # fmt: skip


def _advice(match: Match, instant: str | None) -> str:
    if "share" in match.name or "master" in match.name:
        return "more ranks, or offload the optimizer"
    if "sub-group" in match.name:
        return "a smaller sub_group_size, or offload the optimizer"
    if "bucket" in match.name:
        return "a smaller reduce_bucket_size"
    if "logits" in match.name:
        return "a fused or chunked loss, a smaller micro-batch"
    if "whole model" in match.name:
        return "build or load the model sharded: zero.Init, or rank-0 loading"
    if "attention scores" in match.name:
        return "sdpa or flash attention"
    return "one of the changes below" if instant else "see the changes below"


def _ranks(lines: Sequence[str]) -> int | None:
    for line in lines:
        if match := _WORLD.search(line):
            return int(match[1] or match[2])
    return None


# ------------------------------------------------------------------------------------------------------- other errors


def _batch(lines: Sequence[str], cluster: Cluster | None) -> Iterator[Cause]:
    """DeepSpeed's assertion ``train != micro * accumulation * world``."""
    for number, line in enumerate(lines, 1):
        match = _BATCH.search(line)
        if match is None:
            continue
        train, micro, steps, world = map(int, match.groups())
        ranks = cluster.ranks if cluster else None
        consistent = train == micro * steps * (ranks or 0) or (ranks is None and world == 1 and train % (micro * steps or 1) == 0)
        if world == 1 and ranks != 1 and consistent and train != micro * steps:
            rule = RULES["ds-batch-ok-but-world1"]
            says = f"{train} = {micro} x {steps} x {train // (micro * steps)}: the numbers are right, the world was read as 1"
        else:
            rule = RULES["ds-batch-triangle"]
            per = max(micro * world, 1)
            below = train - train % per
            near = " or ".join(f"{n} (accumulation {n // per})" for n in (below, below + per) if n)
            says = f"{train} is not {micro} x {steps} x {world} = {micro * steps * world}; the nearest are {near}"
        yield Cause(rule.name, rule.name, says, rule.fix, rule.source, number)
        return


def _signed(lines: Sequence[str], found: Estimate | None) -> Iterator[Cause]:
    """Signatures in the order of the table, each once, with the line where it stands."""
    for signature in SIGNATURES:
        number = next((n for n, line in enumerate(lines, 1) if signature.pattern.search(line)), None)
        if number is None:
            continue
        rule = RULES[signature.rule]
        says = signature.says or rule.trigger
        if signature.kind == HOST and found is not None:
            worst = max(found.instants, key=lambda i: i.total("host"))
            have = found.run.cluster.host_bytes
            says += f"; the estimate is {gib(found.host.expected, 0)} GiB a node at {worst.name}"
            says += f", the node has {gib(have, 0)}" if have else ""
        yield Cause(rule.name, rule.name, says, rule.fix, rule.source, number)


def _kind_of(cause: Cause) -> tuple[str, Cause]:
    kind = next((s.kind for s in SIGNATURES if s.rule == cause.rule), CONFIG)
    return kind, cause


def _configured(setup: Setup, causes: Sequence[Cause]) -> list[Cause]:
    """What the rules that the log points at say of the configuration."""
    named = {cause.rule for cause in causes}
    return [Cause(f.rule, f"{f.where} of {Path(f.file).name}", f.message, f.fix, f.source) for f in check(setup)
            if f.rule in named]  # fmt: skip


def _loads(lines: Sequence[str]) -> bool:
    """The last thing a killed process reported was that it loads a checkpoint."""
    tail = "\n".join(lines[-200:])
    return bool(re.search(r"Loading checkpoint shards|from_pretrained|Loading weights", tail)) and "loss" not in tail
