"""The packages that a run needs: in the versions that were assumed, or in the range that the stack itself asks for."""

from __future__ import annotations

from collections.abc import Mapping

from estimators.run import Run
from estimators.stacks.table import STACKS
from estimators.stacks.versions import NEWEST, at_least, parsed

UNPINNED = {"datasets": "reads data for TRL", "flash-attn": "attention flash"}
# Upper ends of what the newest wheel of a stack asks for (Requires-Dist of its METADATA, recorded by
# scripts/stack-schemas): pip refuses any other pin beside it.
RANGES: Mapping[str, Mapping[str, str]] = {
    "swift": {"transformers": "<5.20.0", "peft": "<0.21", "datasets": "<4.8.5"},
    "llamafactory": {"transformers": "<=5.6.0", "accelerate": "<=1.11.0", "peft": "<=0.18.1", "datasets": "<=4.0.0"},
    "axolotl": {
        "transformers": "==5.16.1", "accelerate": "==1.13.0", "peft": "==0.20.0", "deepspeed": "<0.19.0",
        "bitsandbytes": "==0.50.2", "liger-kernel": "==0.8.1", "flash-attn": "==2.8.3",
    },
}  # fmt: skip
# What a stack imports and does not ask for.
ALSO = {"torchtune": "torchao==0.13.0  # the last that has the module that torchtune imports"}


def requirements(run: Run) -> str:
    """``requirements.txt``. torch first: it decides the CUDA build."""
    work = run.workload
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
    if work.loss == "fused":
        names.append("liger-kernel")
    lines = [_pinned(run, name) for name in dict.fromkeys(names)]
    also = [ALSO[work.stack]] if work.stack in ALSO else []
    return "\n".join([*lines, *also, *_unpinned(run)]) + "\n"


def _pinned(run: Run, name: str) -> str:
    """One line: the version that was assumed, unless the stack refuses it."""
    version, stack = run.settings.versions[name], STACKS[run.workload.stack].package
    allowed = RANGES.get(run.workload.stack, {}).get(name)
    if allowed is None:
        return f"{name}=={version}"
    own = run.settings.versions[stack]
    if own != NEWEST[stack]:
        return f"{name}  # in the version that {stack} {own} asks for; {version} was assumed"
    if _allows(allowed, version):
        return f"{name}=={version}"
    return f"{name}{allowed}  # {stack} {own} asks for it; {version} was assumed"


def _allows(allowed: str, version: str) -> bool:
    bound = allowed.lstrip("<=")
    if allowed.startswith("=="):
        return parsed(version) == parsed(bound)
    return at_least(bound, version) if allowed.startswith("<=") else not at_least(version, bound)


def _unpinned(run: Run) -> list[str]:
    work = run.workload
    wanted = {
        "datasets": work.stack == "trl",
        "flash-attn": work.attention == "flash",
    }
    ranges = RANGES.get(work.stack, {})
    return [f"{name}{ranges.get(name, '')}  # {UNPINNED[name]}" for name, needed in wanted.items() if needed]
