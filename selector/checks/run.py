"""Runs the rules over files: ``check_files("ds.json", model="llama-8b", cluster="8xA100")`` gives findings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from estimators.cluster import Cluster, parse_cluster
from estimators.errors import AdvisorError, InputError
from estimators.model import resolve_model
from estimators.readers.accelerate import read_accelerate
from estimators.readers.deepspeed import read_deepspeed
from estimators.readers.reading import Draft, Ignored, Reading
from estimators.readers.section import Section
from estimators.readers.training_arguments import read_training_arguments
from selector.checks.block import Block
from selector.checks.files import Group, groups, without
from selector.checks.finding import Finding, Hit
from selector.checks.folders import expanded
from selector.checks.machine import Machine
from selector.checks.registry import ERROR, SEVERITIES, WARNING
from selector.checks.rules import BESIDE, RULES
from selector.checks.setup import Setup
from selector.checks.words import one_slip

_READERS = {"accelerate": read_accelerate, "training_arguments": read_training_arguments, "deepspeed": read_deepspeed}
_PLACE = re.compile(r"^(?P<file>[^:]*?)(?:, line (?P<line>\d+))?: (?:(?P<where>[^\s:]+): )?(?P<message>.*)$", re.DOTALL)


def check_files(
    paths: Sequence[str | Path],
    *,
    model: Any = None,
    cluster: str | Cluster | None = None,
    machine: Machine | None = None,
    **fields: Any,
) -> tuple[Finding, ...]:
    """Findings on files, errors first; a folder stands for the configurations directly in it. ``fields`` are workload
    fields that come on top of what the files say.

    Raises ``InputError`` for a file that cannot be read or is no configuration.
    """
    spec = resolve_model(model) if model is not None else None
    where = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    facts = Machine.here() if machine is None else machine
    found: list[Finding] = []
    for group in groups(expanded(paths)[0]):
        reading, hits = read(group, where)
        setup = Setup(
            ds=group.ds,
            accel=group.accel,
            args=group.args,
            script=group.script,
            reading=reading,
            model=spec,
            cluster=where,
            fields=fields,
            machine=facts,
            unknown=bool(group.missing),
        )
        found += check(setup)
        found += beside("named-file", group.hits, WARNING)
        found += _refused(group, hits, found)
        found += beside("misspelt-key", _misspelt(reading, group), WARNING)
    order = {severity: index for index, severity in enumerate(SEVERITIES)}
    once = {(f.rule, f.file, f.where, f.message): f for f in found}
    return tuple(sorted(once.values(), key=lambda f: (order[f.severity], f.file, f.line or 0, f.rule)))


def check(setup: Setup) -> Iterator[Finding]:
    """Every rule over one setup."""
    for rule in RULES.values():
        for hit in rule.function(setup):
            yield Finding(
                rule.name,
                hit.severity or rule.severity,
                _file(hit),
                hit.where,
                hit.line,
                hit.message,
                hit.fix or rule.fix,
                rule.source,
                hit.suggestions,
                hit.edits,
            )


def beside(name: str, hits: Sequence[Hit], severity: str) -> Iterator[Finding]:
    """Findings that no function of the table makes."""
    assert name in BESIDE
    for hit in hits:
        yield Finding(
            name,
            hit.severity or severity,
            _file(hit),
            hit.where,
            hit.line,
            hit.message,
            hit.fix,
            "dist-advisor",
            hit.suggestions,
            hit.edits,
        )


def _file(hit: Hit) -> str:
    return str(hit.file) if hit.file else ""


# ----------------------------------------------------------------------------------------- what the readers make of it


def read(group: Group, cluster: Cluster | None) -> tuple[Reading | None, list[Hit]]:
    """The files as strategy and workload, and what a reader refuses."""
    ranks = cluster.ranks if cluster else None
    ds = group.ds if group.ds.path == "" else Block()
    readings: list[Reading] = []
    hits: list[Hit] = []
    for kind, block in (("accelerate", group.accel), ("training_arguments", group.args), ("deepspeed", ds)):
        if not block or (kind == "deepspeed" and readings and readings[0].strategy.engine == "deepspeed"):
            continue
        document = without(block.document, (p for p in group.missing if _has(block, p)))
        draft = Draft()
        try:
            _READERS[kind](Section(document, document.data), draft, ranks)
            readings.append(draft.finish(kind, document.path))
        except InputError as error:
            hits.append(_placed(str(error), block, ds or group.ds))
        except AdvisorError:
            continue
    return _merged(readings), hits


def _has(block: Block, path: str) -> bool:
    return block.get(path) is not None


def _merged(readings: Sequence[Reading]) -> Reading | None:
    """accelerate's strategy with the Trainer's workload on top, where there are both."""
    if not readings:
        return None
    from dataclasses import replace

    first, *others = readings
    for other in others:
        sharded = other.strategy.base not in ("ddp", "single")
        workload = {**first.workload, **other.workload}
        first = replace(
            first,
            workload=workload,
            strategy=other.strategy if sharded else first.strategy,
            ignored=(*first.ignored, *other.ignored),
        )
    return first


def _placed(message: str, block: Block, named: Block) -> Hit:
    """A reader's message taken apart into its place and what it says; the place may be in the file that is named."""
    match = _PLACE.match(message)
    if match is None:
        return Hit(block.document.path, "", None, message)
    if named and match["where"] == named.document.name:
        where, _, says = match["message"].partition(": ")
        return Hit(named.document.path, where, named.line(where), says)
    line = int(match["line"]) if match["line"] else None
    return Hit(block.document.path, match["where"] or "", line, match["message"])


def _refused(group: Group, hits: Sequence[Hit], found: Sequence[Finding]) -> Iterator[Finding]:
    """What a reader refuses and no rule has said; a guess, not an error, where a superset may read it otherwise."""
    if group.script and not group.accel:
        return
    said = {(f.file, f.where) for f in found if f.severity == ERROR}
    superset = group.args.first("base_model", "finetuning_type", "tuner_type", "train_type") is not None
    for hit in hits:
        if (str(hit.file), hit.where) in said:
            continue
        # "is outside": the range is of what can be estimated; the engine may take more.
        mild = superset or "is outside" in hit.message
        yield from beside("refused-value", [hit], WARNING if mild else ERROR)


def _misspelt(reading: Reading | None, group: Group) -> list[Hit]:
    if reading is None or group.script:
        return []
    hits = []
    for item in [i for i in reading.ignored if not i.known][:40]:
        near = _similar(item)
        refuses = reading.kind == "accelerate" and "refuses the file" in item.why
        if near or refuses:
            place = item.where.rpartition(" ")[2]
            fix = f"did you mean {' or '.join(near)}?" if near else "remove it"
            hits.append(Hit(reading.path, place, item.line, item.why, fix, (), ERROR if refuses else "", near))
    return hits


def _similar(item: Ignored) -> tuple[str, ...]:
    """Known names that one letter makes of an unknown key: added, missing, wrong, or two swapped."""
    key = item.where.rpartition(" ")[2].rpartition(".")[2][:60]
    return tuple(sorted(name for name in item.names if len(key) > 4 and name != key and one_slip(key, name)))[:2]
