"""``plan.json`` (schema dist-advisor/plan/1): what was asked, what runs, what is predicted; for ``validate``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from estimators.memory import Estimate
from selector.configs import hyper
from selector.report.document import entry, question

SCHEMA = "dist-advisor/plan/1"


def plan(estimate: Estimate, kind: str, script: str | None, config_files: Sequence[str]) -> dict[str, Any]:
    """Everything that is needed to ask the same question again, and to start what was emitted.

    ``cluster.spelled`` is the cluster as ``--gpus`` takes it; ``workload`` holds the fields as they were given (null:
    the stack decides), ``resolved`` as they were settled.
    """
    run = estimate.run
    asked = question(run.model, [estimate])
    given = {name: getattr(run.workload, name) for name in asked["workload"]}
    cluster = run.cluster
    spelled = f"{cluster.nodes}x{cluster.gpus_per_node}x{cluster.gpu.label}"
    return {
        "schema": SCHEMA,
        "model": {**asked["model"], "class": run.model.class_name, "config": "model/config.json"},
        "cluster": {**asked["cluster"], "spelled": spelled},
        "workload": {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()},
        "resolved": asked["workload"],
        "strategy": estimate.strategy,
        "versions": asked["versions"],
        "seed": hyper.SEED,
        "global_batch": hyper.global_batch(run),
        "entry": {"kind": kind, "script": script, "config_files": list(config_files)},
        "prediction": entry(estimate),
    }


def plan_json(estimate: Estimate, kind: str, script: str | None, config_files: Sequence[str]) -> str:
    return json.dumps(plan(estimate, kind, script, config_files), indent=1, ensure_ascii=False) + "\n"
