"""An existing configuration -> the nearest one of another engine, value by value, with what has no equivalent.

made = convert("ds_config.json", "fsdp", model="llama-8b", cluster="8xA100")
made.text, made.lines, made.lost, made.before, made.after
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from estimators.cluster import Cluster, parse_cluster
from estimators.errors import AdvisorError, UnknownName
from estimators.memory import Estimate, estimate
from estimators.model import resolve_model
from estimators.model.spec import ModelSpec
from estimators.readers import read_config
from estimators.readers.reading import AUTO, Reading
from estimators.readers.safe import YAML_SUFFIXES, load
from estimators.strategy import Strategy
from estimators.values import dataclass, field, replace
from selector.conversion import writers
from selector.conversion.equivalence import TARGETS, Lost, equivalent
from selector.conversion.plan import PURE, Plan, plan_of

HUGGING_FACE = ("accelerate", "training_arguments")


@dataclass(frozen=True, slots=True)
class Line:
    """A value of the source and what it became."""

    source: str
    value: object
    target: str
    becomes: object


@dataclass(frozen=True, slots=True)
class Conversion:
    """``text`` is the new file in ``format`` (json or yaml); ``before`` and ``after`` are estimates, if asked for;
    ``placeholders`` are what only the user knows: addresses and ranks of nodes.
    """

    kind: str  # of the new file: deepspeed, accelerate, training_arguments
    format: str
    text: str
    strategy: Strategy
    source: Strategy
    lines: tuple[Line, ...]
    lost: tuple[Lost, ...]
    before: Estimate | None = None
    after: Estimate | None = None
    notes: tuple[str, ...] = ()
    placeholders: Mapping[str, str] = field(default_factory=dict)  # key -> what to write there


def convert(
    path: str | Path,
    to: str,
    *,
    model: Any = None,
    cluster: str | Cluster | None = None,
    out: str | None = None,
    **fields: Any,
) -> Conversion:
    """Convert a file. ``out`` ending in .yaml makes ``--to deepspeed`` an accelerate file instead of a JSON.

    Raises ``UnknownName`` for a target, and what ``read_config`` raises for the file.
    """
    if to not in TARGETS:
        raise UnknownName("target", to, TARGETS, f"(one of {', '.join(TARGETS)})")
    spec = resolve_model(model) if model is not None else None
    where = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    reading = read_config(path, ranks=where.ranks if where else None)
    plan = _known(plan_of(reading), spec, where)
    strategy, lost = equivalent(plan.strategy, to)
    strategy, unsaid = _sayable(reading, strategy)
    lost += unsaid + _precision_lost(plan, strategy) + _knobs_lost(plan, strategy)
    made = replace(plan, strategy=strategy, reduce_dtype=_reduce_dtype(plan, strategy))
    kind = _kind(reading, strategy, out)
    data = _written(made, kind, reading, path)
    lost += _said_nowhere(made, kind)
    before, after, notes = _memory(reading, strategy, spec, where, fields)
    is_yaml = kind == "accelerate" or (Path(out or path).suffix.lower() in YAML_SUFFIXES and kind != "deepspeed")
    return Conversion(
        kind,
        "yaml" if is_yaml else "json",
        _text(data, is_yaml),
        strategy,
        plan.strategy,
        tuple(_lines(plan, made)),
        tuple(lost),
        before,
        after,
        notes,
        writers.placeholders(data, "precision" in reading.auto) if kind == "accelerate" else {},
    )


def _known(plan: Plan, model: ModelSpec | None, cluster: Cluster | None) -> Plan:
    """The plan with what model and cluster add: classes to wrap, processes."""
    classes = plan.wrap_classes
    if not classes and model is not None:
        classes = tuple(dict.fromkeys(part.class_name for part in model.blocks))
    if cluster is None:
        return replace(plan, wrap_classes=classes)
    return replace(plan, wrap_classes=classes, processes=cluster.ranks, machines=cluster.nodes)


def _kind(reading: Reading, strategy: Strategy, out: str | None) -> str:
    if reading.kind == "training_arguments":
        return "training_arguments"
    wants_yaml = Path(out or "").suffix.lower() in YAML_SUFFIXES
    return "deepspeed" if strategy.engine == "deepspeed" and not wants_yaml else "accelerate"


def _written(plan: Plan, kind: str, reading: Reading, path: str | Path) -> dict[str, Any]:
    source = load(path).data
    if kind == "deepspeed":
        hugging_face = reading.kind in HUGGING_FACE or bool(reading.auto)
        return writers.deepspeed(plan, hugging_face)
    if kind == "accelerate":
        return writers.accelerate(plan, source if reading.kind == "accelerate" else {})
    return writers.arguments(plan, source)


def _text(data: dict[str, Any], is_yaml: bool) -> str:
    if not is_yaml:
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


# ----------------------------------------------------------------------------------------------- what cannot be kept


def _reduce_dtype(plan: Plan, strategy: Strategy) -> str | None:
    """DDP reduces fp32 gradients of fp32 parameters; DeepSpeed would reduce in 16 bit unless told."""
    mixed = (plan.precision or "").endswith("-mixed")
    from_ddp = plan.strategy.engine in ("ddp", "torch")
    if strategy.engine == "deepspeed":
        return "fp32" if from_ddp and mixed else plan.reduce_dtype
    return plan.reduce_dtype


def _sayable(reading: Reading, strategy: Strategy) -> tuple[Strategy, list[Lost]]:
    """What the Trainer's own arguments can start: FSDP1 fully sharded, FSDP2 over all ranks."""
    arguments = reading.kind == "training_arguments" and strategy.engine in ("fsdp1", "fsdp2")
    if not arguments or not (strategy.engine == "fsdp1" or strategy.sharding == "hybrid-shard"):
        return strategy, []
    full = "fsdp1-full-shard" if strategy.engine == "fsdp1" else "fsdp-full-shard"
    if strategy.base == full:
        return strategy, []
    why = f"TrainingArguments start {full} in its place; an accelerate file can say it"
    return Strategy(full, {}, None, strategy.params), [Lost(strategy.sharding.upper().replace("-", "_"), None, why)]


def _precision_lost(plan: Plan, strategy: Strategy) -> list[Lost]:
    lost = []
    word, engine = plan.precision or "", strategy.engine
    if word in PURE and engine != "deepspeed":
        lost.append(
            Lost("16-bit master weights and states", word, f"mixed_precision 'no' and a model loaded in {word}")
        )
    if engine in ("fsdp1", "fsdp2"):
        asked = plan.reduce_dtype or (
            "fp32" if plan.strategy.engine in ("ddp", "torch") and word.endswith("-mixed") else None
        )
        if asked and asked != word.removesuffix("-mixed"):
            lost.append(
                Lost(
                    "gradient reduction",
                    asked,
                    "the YAML cannot say it: accelerate reduces in the dtype of "
                    "mixed_precision; give the plugin a mixed_precision_policy with reduce_dtype",
                )
            )
    if engine == "ddp" and plan.strategy.engine in ("deepspeed", "fsdp1", "fsdp2") and word.endswith("-mixed"):
        lost.append(
            Lost(
                "gradient reduction",
                plan.reduce_dtype or word.removesuffix("-mixed"),
                "DDP reduces the fp32 gradients of fp32 parameters: load the model in fp32 for the same master weights",
            )
        )
    if plan.accumulate_dtype and engine != "deepspeed":
        lost.append(
            Lost("data_types.grad_accum_dtype", plan.accumulate_dtype, "gradients accumulate in the parameters' dtype")
        )
    return lost


def _knobs_lost(plan: Plan, strategy: Strategy) -> list[Lost]:
    """Settings of the source's engine that the other has not."""
    if plan.strategy.engine == strategy.engine:
        return []
    kept = {"hpz", "shard", "grad_accum_dtype", "wrap"}
    engines = {"deepspeed": "DeepSpeed", "fsdp1": "FSDP1", "fsdp2": "FSDP2", "ddp": "DDP", "torch": "torch"}
    source = engines[plan.strategy.engine]
    return [Lost(name, value, f"a setting of {source}") for name, value in plan.knobs.items() if name not in kept]


def _said_nowhere(plan: Plan, kind: str) -> list[Lost]:
    """What an accelerate file without DeepSpeed has no key for: the training code says it."""
    lost = []
    if kind == "accelerate" and plan.strategy.engine != "deepspeed":
        for name, value in (
            ("micro_batch", plan.micro_batch),
            ("gradient_accumulation_steps", plan.grad_accum),
            ("gradient_clipping", plan.clipping),
        ):
            if value not in (None, AUTO):
                lost.append(Lost(name, value, "the training code's: accelerate's file has no key for it here"))
    if (
        plan.checkpointing is not None
        and kind in ("deepspeed", "accelerate")
        and plan.strategy.engine in ("deepspeed", "ddp")
    ):
        why = "the model's: gradient_checkpointing_enable(), or the Trainer's argument"
        lost.append(Lost("activation checkpointing", plan.checkpointing, why))
    if kind == "accelerate" and plan.strategy.engine == "deepspeed":
        for name, value in (*plan.strategy.options.items(), ("communication_data_type", plan.reduce_dtype)):
            if value is not None:
                lost.append(Lost(name, value, "needs a DeepSpeed JSON, named by deepspeed_config_file"))
    return lost


def _lines(plan: Plan, made: Plan) -> list[Line]:
    """Value by value what both sides say."""
    source, target = plan.strategy, made.strategy
    rows = [Line("strategy", source.name, "strategy", target.name)]
    if plan.precision:
        word = plan.precision if target.engine == "deepspeed" else f"mixed_precision {writers.mixed_precision(made)}"
        rows.append(Line("precision", plan.precision, "precision", word))
    sharded = target.engine in ("deepspeed", "fsdp1", "fsdp2")
    if plan.whole_on_save is not None and sharded:
        fsdp = "FULL_STATE_DICT" if plan.whole_on_save else "SHARDED_STATE_DICT"
        becomes = f"gather 16-bit weights {plan.whole_on_save}" if target.engine == "deepspeed" else fsdp
        rows.append(Line("save", plan.whole_on_save, "save", becomes))
    if plan.sharded_load is not None and sharded:
        name = "zero.Init" if target.engine == "deepspeed" else "fsdp_cpu_ram_efficient_loading"
        rows.append(Line("load", plan.sharded_load, name, plan.sharded_load))
    if made.reduce_dtype and target.engine == "deepspeed":
        rows.append(Line("reduction", plan.reduce_dtype or "fp32", "communication_data_type", made.reduce_dtype))
    return rows


# ------------------------------------------------------------------------------------------------------------- memory


def _memory(
    reading: Reading, strategy: Strategy, model: ModelSpec | None, cluster: Cluster | None, fields: dict[str, Any]
) -> tuple[Estimate | None, Estimate | None, tuple[str, ...]]:
    if model is None or cluster is None:
        return None, None, ("give --model and --gpus: then memory before and after is shown",)
    found: list[Estimate | None] = []
    notes: list[str] = []
    work = {k: v for k, v in reading.workload.items() if k not in ("param_dtype", "reduce_dtype", "state_dtype")}
    for which, given in ((reading.strategy, reading.workload), (strategy, work)):
        try:
            made = estimate(model, cluster, which, **{**given, **fields})
            made.instants  # noqa: B018 - computes it
            found.append(made)
        except AdvisorError as error:
            found.append(None)
            notes.append(f"{which.name}: {error}")
    return found[0], found[1], tuple(notes)


__all__ = ["Conversion", "Line", "convert"]
