"""A validated run as a measured case: one JSON line in the format that ``validate --cases`` scores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from estimators.errors import InputError
from estimators.workload import Workload
from validate.report import Report

GIB = 2**30


def case_of(report: Report) -> dict[str, Any]:
    """The row of a run on a card. Raises ``InputError`` for a run that measured no card's memory."""
    if report.device != "cuda":
        raise InputError(
            f"--save-case keeps what a GPU measured; this run was mode {report.mode} on {report.device}: give --mode gpu "
            "or rehearse on a machine that has one"
        )
    run, plain = report.estimate.run, Workload()
    asked = {n: getattr(run.workload, n) for n in ("method", "precision", "seq_len", "micro_batch", "grad_accum",
             "checkpointing", "attention", "loss", "compile", "stack")}  # fmt: skip
    given = {n: getattr(run.workload, n) for n in ("lora_rank", "lora_targets", "quant", "param_dtype", "state_dtype",
             "reduce_dtype", "adapter_dtype") if getattr(run.workload, n) != getattr(plain, n)}  # fmt: skip
    scaled = ", ".join(f"{name} {a} -> {b}" for name, (a, b) in report.scaled.items())
    now = datetime.now(timezone.utc)
    return {
        "id": f"own-{now:%Y%m%d%H%M%S}-{run.strategy.base}",
        "source": "dist-advisor validate",
        "source_path": report.mode,
        "date": f"{now:%Y-%m-%d}",
        "group": f"own-{run.model.name}-{run.workload.method}-{run.strategy.base}",
        "quality": "A",
        "model": {"name": run.model.name, "config": dict(run.model.config)},
        "cluster": {"gpu": run.cluster.gpu.label, "gpus": run.ranks, "nodes": run.cluster.nodes},
        "strategy": report.strategy,
        "parallel": None,
        "workload": {**asked, **given, "optimizer": run.settings.optimizer, "seq_kind": "fixed"},
        "versions": dict(report.versions),
        "measured": _measured(report),
        "notes": f"synthetic tokens, last of a few steps{', scaled: ' + scaled if scaled else ''}",
    }


def _measured(report: Report) -> Mapping[str, Any]:
    if report.failure is not None:
        if report.failure.kind != "memory":
            raise InputError(f"--save-case: the run failed and measured nothing ({report.failure.reason})")
        return {"oom": True}
    found: dict[str, Any] = {"oom": False}
    for key, name in (("allocated_bytes", "allocated_gib"), ("reserved_bytes", "reserved_gib")):
        values = [int(c[key]) for c in report.counters.values() if c.get(key)]  # type: ignore[arg-type]
        if values:
            found[name] = round(max(values) / GIB, 4)
    if report.process_bytes:
        found["process_gib"] = round(report.process_bytes / GIB, 4)
    if report.mode == "gpu" and report.step_seconds:
        found |= {
            "step_seconds": round(report.step_seconds, 4),
            "tokens_per_s_per_gpu": round(report.tokens_per_s or 0, 1),
        }
    return found


def append(report: Report, path: str) -> None:
    """One more line at the end of ``path``."""
    line = json.dumps(case_of(report), ensure_ascii=False)
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise InputError(f"--save-case {path} cannot be written: {error.strerror}") from None
