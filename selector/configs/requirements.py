"""The packages that a run needs, pinned to the versions that were assumed."""

from __future__ import annotations

from estimators.run import Run
from estimators.stacks.table import STACKS

UNPINNED = {"datasets": "reads data for TRL", "liger-kernel": "the fused loss", "flash-attn": "attention flash"}


def requirements(run: Run) -> str:
    """``requirements.txt``. torch first: it decides the CUDA build."""
    work, versions = run.workload, run.settings.versions
    names = ["torch"]
    if work.stack not in ("torchtitan", "torchtune"):
        names.append("transformers")
    names.append(STACKS[work.stack].package)
    if STACKS[work.stack].accelerate:
        names.append("accelerate")
    if run.strategy.engine == "deepspeed":
        names.append("deepspeed")
    if work.has_adapters and work.stack not in ("torchtitan", "torchtune"):
        names.append("peft")
    if work.method == "qlora" or run.settings.optimizer_impl.startswith("bnb"):
        names.append("bitsandbytes")
    pinned = [f"{name}=={versions[name]}" for name in dict.fromkeys(names)]
    return "\n".join([*pinned, *_unpinned(run)]) + "\n"


def _unpinned(run: Run) -> list[str]:
    work = run.workload
    wanted = {
        "datasets": work.stack == "trl",
        "liger-kernel": work.loss == "fused",
        "flash-attn": work.attention == "flash",
    }
    return [f"{name}  # {UNPINNED[name]}" for name, needed in wanted.items() if needed]
