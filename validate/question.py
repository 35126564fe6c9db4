"""What a folder says: ``plan.json`` and the files that it names, or a configuration that a person wrote.

Nothing else in the folder is read, and nothing in it is run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from estimators.cluster import Cluster, parse_cluster
from estimators.errors import InputError, short
from estimators.memory import resolve
from estimators.model import resolve_model
from estimators.model.spec import ModelSpec
from estimators.readers import Reading, read_config
from estimators.readers.safe import load
from estimators.run import Run
from estimators.strategy import Strategy, parse_strategy
from estimators.workload import Workload, workload

PLAN = "plan.json"
SCHEMA = "dist-advisor/plan/1"
CONFIGS = (".json", ".yaml", ".yml")


@dataclass(frozen=True)
class Question:
    """One run that somebody wants to start. ``entry``: trainer, accelerate, torch or deepspeed.

    ``deepspeed``: the DeepSpeed JSON as it stands in the folder, ``accelerate``: the path of the YAML; None where the
    folder has none.
    """

    folder: Path
    model: ModelSpec
    cluster: Cluster
    strategy: Strategy
    workload: Workload
    entry: str
    deepspeed: Mapping[str, Any] | None = None
    accelerate: Path | None = None
    notes: tuple[str, ...] = ()

    def run(self, device: str, cluster: Cluster | None = None) -> Run:
        """The resolved run on ``cuda`` or ``cpu``, with the versions that are installed."""
        return resolve(self.model, cluster or self.cluster, self.strategy, device, workload=self.workload)


def read(
    folder: str | Path,
    *,
    model: object = None,
    gpus: str | Cluster | None = None,
    config: str | None = None,
    **fields: Any,
) -> Question:
    """The question of a folder. ``fields`` are the workload's and win over what the files say.

    Raises ``InputError`` for a folder or file that cannot be used.
    """
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise InputError(f"{short(str(folder), 200)} is not a folder; recommend --emit DIR writes one")
    plan = place / PLAN
    if plan.is_file() and config is None:
        return _planned(place, _plan(plan), model, gpus, fields)
    return _written(place, model, gpus, config, fields)


# -- emitted ---------------------------------------------------------------------------------------------------------


def _plan(path: Path) -> Mapping[str, Any]:
    data: Mapping[str, Any] = load(path).data
    if data.get("schema") != SCHEMA:
        raise InputError(f"{path}: schema {short(data.get('schema'))}, expected {SCHEMA}")
    missing = [key for key in ("model", "cluster", "workload", "strategy", "entry") if key not in data]
    if missing:
        raise InputError(f"{path}: {', '.join(missing)} missing; emit the folder again")
    return data


def _planned(place: Path, plan: Mapping[str, Any], model: object, gpus: Any, fields: Mapping[str, Any]) -> Question:
    try:
        config = plan["model"].get("config")
        spelled = plan["cluster"]["spelled"]
        entry, files = str(plan["entry"]["kind"]), [place / str(name) for name in plan["entry"]["config_files"]]
        given = {k: v for k, v in plan["workload"].items() if v is not None}
    except (KeyError, TypeError, AttributeError) as wrong:
        raise InputError(f"{place / PLAN} cannot be read: {wrong!r}; emit the folder again") from None
    for file in files:
        if not file.resolve().is_relative_to(place.resolve()):
            raise InputError(f"{place / PLAN}: {file} lies outside the folder")
    spec = resolve_model(model if model is not None else str(place / str(config)) if config else plan["model"]["name"])
    asked = _workload({**given, **fields})
    spec = replace_name(spec, str(plan["model"].get("name", spec.name))) if model is None else spec
    versions = {k: str(v) for k, v in dict(plan.get("versions", {})).items()}
    return Question(
        place, spec, _cluster(gpus or spelled), parse_strategy(str(plan["strategy"])), asked, entry,
        _json_of(files), _yaml_of(files), _differing(versions),
    )  # fmt: skip


def replace_name(spec: ModelSpec, name: str) -> ModelSpec:
    from estimators.values import replace as replaced

    return replaced(spec, name=name)


def _workload(fields: Mapping[str, Any]) -> Workload:
    """Defaults are left out: a rank of adapters beside full training is a default, not a contradiction."""
    plain = Workload()
    listed = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return workload(**{k: v for k, v in listed.items() if getattr(plain, k, None) != v})


def _differing(versions: Mapping[str, str]) -> tuple[str, ...]:
    """A note where the folder was written for other versions than those that will run."""
    from estimators.stacks.versions import installed

    there = installed()
    names = ("torch", "transformers", "accelerate", "deepspeed", "peft")
    other = [
        f"{n} {versions[n]} -> {there[n]}" for n in names if n in versions and n in there and versions[n] != there[n]
    ]
    return (f"the plan assumes other versions than are installed: {', '.join(other)}",) if other else ()


# -- written by hand -------------------------------------------------------------------------------------------------


def _written(place: Path, model: object, gpus: Any, config: str | None, fields: Mapping[str, Any]) -> Question:
    if model is None:
        raise InputError(
            f"{place} has no {PLAN}; name the model with --model (and the batch with --micro-batch, --seq-len)"
        )
    reading = read_config(config, _ranks(gpus)) if config is not None else _only_config(place, _ranks(gpus))
    spec = resolve_model(model)
    hidden = spec.config.get("hidden_size")
    reading = reading.with_hidden_size(hidden) if isinstance(hidden, int) else reading
    reading.require_modelled(fields)
    if gpus is None and reading.num_processes is None:
        raise InputError(f"{reading.path} does not say how many GPUs there are; give --gpus 4xA10")
    entry = {"training_arguments": "trainer"}.get(reading.kind, reading.kind)
    asked = {"stack": entry, **reading.workload, **fields}
    cluster = _cluster(gpus) if gpus is not None else _guessed(reading)
    files = list(reading.files)
    notes = (
        f"{reading.path.name} is read as {reading.kind.replace('_', ' ')}: {reading.strategy.name}",
        *reading.notes,
    )
    return Question(
        place, spec, cluster, reading.strategy, _workload(asked), entry, _json_of(files), _yaml_of(files), notes
    )  # fmt: skip


def _only_config(place: Path, ranks: int | None) -> Reading:
    """The configuration of a folder; one that another one names belongs to it."""
    found: list[Reading] = []
    for path in sorted(p for p in place.iterdir() if p.suffix in CONFIGS and p.is_file()):
        try:
            found.append(read_config(path, ranks))
        except InputError as reason:
            if "neither a DeepSpeed JSON" not in str(reason):
                raise
    named = {file.resolve() for reading in found for file in reading.files if file != reading.path}
    alone = [reading for reading in found if reading.path.resolve() not in named]
    if len(alone) != 1:
        what = ", ".join(r.path.name for r in alone) or "no DeepSpeed JSON, accelerate YAML or TrainingArguments"
        raise InputError(f"{place} has no {PLAN} but {what}; name one with --config FILE")
    return alone[0]


def _ranks(gpus: Any) -> int | None:
    return _cluster(gpus).ranks if gpus is not None else None


def _cluster(gpus: str | Cluster) -> Cluster:
    return parse_cluster(gpus) if isinstance(gpus, str) else gpus


def _guessed(reading: Reading) -> Cluster:
    """As many ranks as the file says, of a card that nobody named: only bytes are compared here."""
    from estimators.cluster import Gpu

    nodes = reading.num_machines or 1
    return Cluster(
        Gpu("unnamed", "a card that nobody named", 80 * 2**30), (reading.num_processes or nodes) // nodes, nodes
    )


# -- files -----------------------------------------------------------------------------------------------------------


def _json_of(files: list[Path]) -> Mapping[str, Any] | None:
    """The DeepSpeed JSON among the files."""
    for file in files:
        if file.suffix == ".json":
            try:
                data = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise InputError(f"{file} cannot be read: {error}") from None
            if isinstance(data, dict) and ("zero_optimization" in data or "train_micro_batch_size_per_gpu" in data):
                return data
    return None


def _yaml_of(files: list[Path]) -> Path | None:
    return next((file for file in files if file.suffix in (".yaml", ".yml")), None)


def sized(question: Question, **fields: Any) -> Question:
    """The same question with other workload fields."""
    from estimators.values import replace as replaced

    return replace(question, workload=replaced(question.workload, **fields))
