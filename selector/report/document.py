"""Estimates as the JSON of the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from estimators.memory import Estimate
from estimators.model.spec import ModelSpec
from estimators.result import Interval
from estimators.time import StepTime
from estimators.values import fields
from estimators.workload import FIELDS
from selector.speed import cost_of_billion

if TYPE_CHECKING:
    from selector.levers import Lever

# Workload fields that a strategy's engine settles; at the top they stand only where all strategies agree.
SETTLED = ("param_dtype", "state_dtype", "reduce_dtype", "optimizer", "adapter_dtype")


def interval(value: Interval) -> dict[str, int]:
    return {"low": round(value.low), "expected": round(value.expected), "high": round(value.high)}


def question(model: ModelSpec, estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Model, cluster, workload and versions: what the estimates have in common."""
    first = estimates[0].run
    cluster = first.cluster
    return {
        "model": {
            "name": model.name,
            "family": model.family,
            "params": model.num_params,
            "trainable_params": first.model.num_trainable,
            "shapes": model.shapes,
            "source": model.source,
        },
        "cluster": {
            "gpu": cluster.gpu.label,
            "gpus_per_node": cluster.gpus_per_node,
            "nodes": cluster.nodes,
            "gpu_memory_bytes": cluster.gpu.memory_bytes,
            "host_memory_bytes": cluster.host_bytes,
            "nvme_bytes": cluster.nvme_bytes,
        },
        "workload": workload_of(estimates),
        "versions": dict(first.settings.versions),
    }


def workload_of(estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Every workload field, resolved; null where strategies settle it differently (see each estimate's settings)."""
    given = estimates[0].run.workload
    values = {name: getattr(given, name) for name in FIELDS if name != "versions"}
    for name in SETTLED:
        settled = {getattr(e.run.settings, name) for e in estimates}
        values[name] = settled.pop() if len(settled) == 1 else None
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def entry(estimate: Estimate, levers: Sequence[Lever] | None = None) -> dict[str, Any]:
    """One element of ``estimates``; ``levers`` null where nobody asked for them."""
    gpu, run = estimate.gpu, estimate.run
    settings = run.settings
    return {
        "strategy": estimate.strategy,
        "engine": run.strategy.engine,
        "verdict": estimate.verdict,
        "reason": estimate.reason,
        "gpu": {
            "allocated_bytes": interval(gpu.allocated),
            "reserved_bytes": interval(gpu.reserved),
            "process_bytes": interval(gpu.process),
            "capacity_bytes": gpu.capacity,
            "runtime": [
                {"name": o.name, "low": o.low, "expected": o.expected, "high": o.high, "source": o.source}
                for o in gpu.runtime
            ],
        },
        "peak_instant": estimate.peak.name,
        "levers": None if levers is None else [lever.document() for lever in levers],
        "instants": [
            {
                "name": instant.name,
                "terms": [
                    {"name": t.name, "category": t.category, "place": t.place, "bytes": t.bytes, "formula": t.formula}
                    for t in instant.terms
                ],
            }
            for instant in estimate.instants
        ],
        "host": {"bytes_per_node": interval(estimate.host), "capacity_bytes": run.cluster.host_bytes},
        "nvme": {"bytes_per_node": estimate.nvme_bytes, "capacity_bytes": run.cluster.nvme_bytes},
        "time": time_of(estimate),
        "settings": {
            f.name: plain(getattr(settings, f.name)) for f in fields(settings) if f.name not in ("versions", "notes")
        },
        "notes": list(estimate.notes),
    }


def time_of(estimate: Estimate) -> dict[str, Any] | None:
    """Step time, speed and what a billion tokens cost; null where a figure of the card is missing."""
    found, spent = estimate.time, cost_of_billion(estimate)
    if not isinstance(found, StepTime) or spent is None:
        return None
    return {
        **found.document(),
        "tokens_per_day": spent.tokens_per_day,
        "billion_tokens": {"gpu_hours": spent.gpu_hours, "cost": spent.money, "energy_kwh": spent.energy_kwh},
    }


def plain(value: Any) -> Any:
    """Mappings and tuples as JSON has them."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def estimate_document(
    model: ModelSpec,
    estimates: Sequence[Estimate],
    left_out: Mapping[str, str],
    levers: Sequence[Sequence[Lever]] | None = None,
) -> dict[str, Any]:
    """``dist-advisor/estimate/1``; ``levers`` of each estimate where they were asked for."""
    return {
        "schema": "dist-advisor/estimate/1",
        **question(model, estimates),
        "estimates": [entry(e, levers[i] if levers else None) for i, e in enumerate(estimates)],
        "left_out": [{"strategy": name, "why": why} for name, why in left_out.items()],
    }
