"""A pasted log and what is known of the run -> what went wrong, at which instant, and what mends it.

    diagnose(log, model="qwen2.5-72b", cluster="2x8xA100-80GB", configs=["ds.json"]).causes[0].title

Nothing is guessed: where no message is recognised the kind is ``unknown``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from estimators.cluster import Cluster, parse_cluster
from estimators.errors import AdvisorError
from estimators.memory import Estimate, estimate
from estimators.model import resolve_model
from estimators.model.spec import ModelSpec
from estimators.values import dataclass, field, replace
from selector.checks.files import groups
from selector.checks.machine import Machine
from selector.checks.rules import RULES
from selector.checks.run import check, read
from selector.checks.setup import Setup
from selector.diagnosis.causes import Cause, batch, explained, signed
from selector.diagnosis.oom import OutOfMemory, out_of_memory
from selector.diagnosis.remedies import Remedy, host_remedies, remedies
from selector.diagnosis.signatures import CONFIG, HOST, SIGNATURES, instant_of
from selector.diagnosis.sizes import Match, matches

MAX_LINES, MAX_LINE = 50_000, 2_000
NEAR = 0.5  # of what was allocated: an instant expected to hold less is not where it failed
_WORLD = re.compile(r"\bworld[_ ]size['\"]?\s*[:=]\s*(\d{1,6})|nproc[_-]per[_-]node[= ](\d{1,4})", re.IGNORECASE)
OOM, UNKNOWN = "gpu-oom", "unknown"


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
    causes = [*batch(lines, where), *signed(lines, found)]
    if setup is not None and causes:
        causes = _configured(setup, causes)
    said = [cause.where for cause in causes]
    notes = [note for note in notes if not any(where and note.startswith(f"{where}: ") for where in said)]
    kind = next((kind for kind, _ in map(_kind_of, causes)), UNKNOWN) if causes else UNKNOWN
    mends = host_remedies(found, spec) if kind == HOST and found is not None and spec is not None else ()
    if kind == HOST and found is not None and not mends:
        notes.append("no single change that the estimator knows is enough: more host RAM, or more nodes")
    return Diagnosis(
        kind,
        "load" if kind == HOST and _loads(lines) else None,
        tuple(causes),
        estimate=found,
        remedies=mends,
        notes=tuple(notes),
    )


def _setup(
    configs: Sequence[str | Path], model: ModelSpec | None, cluster: Cluster | None, fields: dict[str, Any]
) -> tuple[Setup | None, list[str]]:
    for group in groups(configs) if configs else ():
        reading, hits = read(group, cluster)
        notes = [f"{_where(str(hit.file), hit.line, hit.where)}: {hit.message}" for hit in hits]
        setup = Setup(
            ds=group.ds,
            accel=group.accel,
            args=group.args,
            script=group.script,
            reading=reading,
            model=model,
            cluster=cluster,
            fields=fields,
            machine=Machine(),
            unknown=bool(group.missing),
        )
        return setup, notes
    return None, []


def _estimate(
    setup: Setup | None,
    model: ModelSpec | None,
    cluster: Cluster | None,
    strategy: str | None,
    fields: dict[str, Any],
    notes: list[str],
) -> Estimate | None:
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


def _gpu(
    lines: list[str],
    message: OutOfMemory,
    model: ModelSpec | None,
    cluster: Cluster | None,
    found: Estimate | None,
    notes: list[str],
) -> Diagnosis:
    ranks = cluster.ranks if cluster else _ranks(lines)
    at = next((i for i, line in enumerate(lines) if "out of memory" in line), 0)
    framed = instant_of(lines, at)
    same = matches(message.tried, model, ranks, found, framed)
    instant = framed or next((m.instant for m in same if m.instant and _holds(m.instant, message, found)), None)
    causes = tuple(explained(message, same, instant, found, at + 1))
    short = message.shortage if found is not None and found.gpu.process.expected < found.gpu.capacity else 0
    mends = remedies(found, model, short) if found is not None and model is not None else ()
    if found is not None and not mends:
        notes.append("no change that was tried is enough; recommend looks at other strategies and methods")
    return Diagnosis(OOM, instant, causes, message, same, found, mends, tuple(notes))


def _holds(instant: str, message: OutOfMemory, found: Estimate | None) -> bool:
    """Whether the estimate of an instant comes near what was allocated when the allocation failed."""
    if found is None or message.allocated is None:
        return True
    expected = next((i.gpu_bytes for i in found.instants if i.name == instant), None)
    return expected is None or expected >= NEAR * message.allocated


def _ranks(lines: Sequence[str]) -> int | None:
    for line in lines:
        if match := _WORLD.search(line):
            return int(match[1] or match[2])
    return None


def _kind_of(cause: Cause) -> tuple[str, Cause]:
    kind = next((s.kind for s in SIGNATURES if s.rule == cause.rule), CONFIG)
    return kind, cause


def _configured(setup: Setup, causes: Sequence[Cause]) -> list[Cause]:
    """The causes, each with what its rule says of the configuration; further places of a rule behind it."""
    found = [finding for finding in check(setup) if finding.rule in {cause.rule for cause in causes}]
    made: list[Cause] = []
    for cause in causes:
        for number, finding in enumerate(f for f in found if f.rule == cause.rule):
            where = _where(finding.file, finding.line, finding.where)
            if number:
                made.append(Cause(finding.rule, cause.title, finding.message, finding.fix, finding.source, None, where))
            else:  # the log's own numbers stay; a rule's general words give way to the file's
                general = cause.because == RULES[cause.rule].trigger
                because = finding.message if general else cause.because
                made.append(replace(cause, because=because, fix=finding.fix, where=where))
        if not any(finding.rule == cause.rule for finding in found):
            made.append(cause)
    return made


def _where(file: str, line: int | None, key: str) -> str:
    return f"{Path(file).name}{f', line {line}' if line else ''}: {key}"


def _loads(lines: Sequence[str]) -> bool:
    """The last thing a killed process reported was that it loads a checkpoint."""
    tail = "\n".join(lines[-200:])
    return bool(re.search(r"Loading checkpoint shards|from_pretrained|Loading weights", tail)) and "loss" not in tail
