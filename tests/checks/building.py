"""Small files for cases: each helper gives (name, text)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from selector.checks import Finding, check_files
from selector.checks.machine import Machine

Part = tuple[str, str]
NOWHERE = Machine()


def ds(stage: int | None = None, top: dict[str, Any] | None = None, **zero: Any) -> Part:
    """A DeepSpeed JSON with a micro-batch of 1, unless ``top`` says otherwise."""
    data: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, **(top or {})}
    if stage is not None:
        data["zero_optimization"] = {"stage": stage, **zero}
    return "ds.json", json.dumps({k: v for k, v in data.items() if v is not None})


def raw(data: dict[str, Any]) -> Part:
    return "ds.json", json.dumps(data)


def fsdp(version: int | None = 1, top: dict[str, Any] | None = None, **config: Any) -> Part:
    """accelerate's YAML (JSON is YAML) with FSDP and a wrap policy."""
    block: dict[str, Any] = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    if version is not None:
        block["fsdp_version"] = version
    block |= {f"fsdp_{k}": v for k, v in config.items()}
    data = {"distributed_type": "FSDP", "mixed_precision": "bf16", "fsdp_config": block, **(top or {})}
    return "accelerate.yaml", json.dumps({k: v for k, v in data.items() if v is not None})


def accel(kind: str, **data: Any) -> Part:
    return "accelerate.yaml", json.dumps({"distributed_type": kind, **data})


def args(**data: Any) -> Part:
    return "args.json", json.dumps({"output_dir": "out", **data})


def py(text: str) -> Part:
    return "train.py", text


def found(folder: Path, parts: tuple[Part, ...], machine: Machine = NOWHERE, **known: Any) -> tuple[Finding, ...]:
    """Findings on the parts, written to a folder."""
    for name, text in parts:
        (folder / name).write_text(text, encoding="utf-8")
    return check_files([folder / name for name, _ in parts], machine=machine, **known)
