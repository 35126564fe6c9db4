"""The DeepSpeed JSON of a folder, made ready for ``deepspeed.initialize`` here: ``auto`` filled, the batch of these
ranks, and on a CPU nothing that would have to be compiled. What was changed is said."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from estimators.readers import AUTO
from estimators.run import Run
from estimators.strategy import knobs_of
from validate.cells.deepspeed_engine import config_of

NO_FILE = "the folder has no DeepSpeed JSON: one was made from its settings"
ON_CPU = (
    "on a CPU torch's fused Adam steps in place of DeepSpeed's FusedAdam and CPUAdam, whose operators take minutes to "
    "build and hold the same tensors"
)
OFFLOADS = ("offload_optimizer", "offload_param")


def settled(given: Mapping[str, Any] | None, run: Run, folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Configuration and notes."""
    notes: list[str] = []
    config: dict[str, Any]
    if given is None:
        config = config_of(run)
        if run.settings.optimizer_impl not in ("ds-fused", "ds-cpu"):
            del config["optimizer"]
        elif run.settings.device == "cuda":
            config["optimizer"]["params"] = {"lr": 1e-5}
        notes.append(NO_FILE)
    else:
        config = deepcopy(dict(given))
    config.pop("train_batch_size", None)
    config["train_micro_batch_size_per_gpu"] = run.workload.micro_batch
    config["gradient_accumulation_steps"] = run.workload.grad_accum
    config["steps_per_print"] = 10**9
    _fill(config, run)
    zero = config.setdefault("zero_optimization", {})
    for block in OFFLOADS:
        if isinstance(zero.get(block), dict) and zero[block].get("device") == "nvme":
            zero[block]["nvme_path"] = str(
                folder.resolve() / os.path.expanduser(str(zero[block].get("nvme_path", "nvme_swap")))
            )
    if run.settings.device == "cpu":
        notes.extend(_for_cpu(config, run))
    return config, tuple(notes)


def _fill(config: dict[str, Any], run: Run) -> None:
    """``auto`` as the Hugging Face stack fills it, from what the run was resolved to."""
    zero = config.get("zero_optimization", {})
    keys = {knob.key: knob.name for knob in knobs_of(run.strategy.base)}
    for key, value in list(zero.items()):
        if value == AUTO:
            zero[key] = run.settings.knobs[keys[key]]
    for name in ("bf16", "fp16"):
        if config.get(name, {}).get("enabled") == AUTO:
            config[name]["enabled"] = run.settings.compute_dtype == name
    if config.get("gradient_clipping") == AUTO:
        config["gradient_clipping"] = 1.0
    for section in ("optimizer", "scheduler"):
        values = config.get(section, {}).get("params", {})
        for key in [key for key, value in values.items() if value == AUTO]:
            del values[key]
    config.pop("scheduler", None)


def _for_cpu(config: dict[str, Any], run: Run) -> list[str]:
    config["zero_force_ds_cpu_optimizer"] = False
    config["zero_allow_untested_optimizer"] = True
    for block in OFFLOADS:
        if isinstance(config["zero_optimization"].get(block), dict):
            config["zero_optimization"][block]["pin_memory"] = False
    optimizer = config.get("optimizer", {})
    if str(optimizer.get("type", "")).lower() in ("adam", "adamw"):
        optimizer.setdefault("params", {}).update(torch_adam=True, fused=True)
        return [ON_CPU]
    return [ON_CPU] if run.settings.optimizer_impl in ("ds-fused", "ds-cpu") else []
