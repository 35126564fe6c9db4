"""An accelerate YAML as accelerate itself reads it.

On GPUs ``Accelerator`` builds the engine. Without one it silently does not shard, so there its launcher's parser reads
the file, its plugin is made from what the launcher would have set, and torch's engine is built from the plugin.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from estimators.run import Run
from estimators.values import replace

PRECISIONS = {"no": "fp32", "bf16": "bf16", "fp16": "fp16"}
SHARDINGS = {
    "FULL_SHARD": "full-shard", "SHARD_GRAD_OP": "shard-grad-op", "NO_SHARD": "no-shard", "HYBRID_SHARD": "hybrid-shard",
}  # fmt: skip


def environment(path: Path) -> Mapping[str, str]:
    """What ``accelerate launch --config_file`` would set for each process."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    arguments = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    arguments, _, _ = _validate_launch_command(arguments)
    found = prepare_multi_gpu_env(arguments)
    return {name: str(v) for name, v in found.items() if name.startswith(("ACCELERATE_", "FSDP_"))}


@contextmanager
def applied(path: Path) -> Iterator[Mapping[str, str]]:
    """Inside, the environment is that of a process which accelerate has launched."""
    before = dict(os.environ)
    found = environment(path)
    os.environ.update(found)
    try:
        yield found
    finally:
        os.environ.clear()
        os.environ.update(before)


def as_read(path: Path, run: Run) -> tuple[Run, tuple[str, ...]]:
    """The run with what accelerate read in place of what was planned, and a note that says what that is."""
    from accelerate.utils import FullyShardedDataParallelPlugin

    with applied(path) as found:
        precision = PRECISIONS.get(found.get("ACCELERATE_MIXED_PRECISION", "no"), "fp32")
        plugin: Any = FullyShardedDataParallelPlugin() if found.get("ACCELERATE_USE_FSDP") == "true" else None
    said = f"mixed precision {found.get('ACCELERATE_MIXED_PRECISION', 'no')}"
    made = run
    if run.workload.precision.endswith("-mixed") and precision != run.settings.compute_dtype:
        made = replace(made, settings=replace(made.settings, compute_dtype=precision, autocast=precision != "fp32"))
    if plugin is not None:
        made, words = _sharded(made, plugin)
        said = f"{words}, {said}"
    note = (
        f"accelerate shards only on GPUs for all ranks: its own loader read {path.name} "
        f"({said}), torch's engine was built from that"
    )
    return made, (note,)


def _sharded(run: Run, plugin: Any) -> tuple[Run, str]:
    knobs: dict[str, Any] = dict(run.settings.knobs)
    if plugin.transformer_cls_names_to_wrap is None and plugin.auto_wrap_policy is None:
        knobs["wrap"] = "none"
    if plugin.fsdp_version == 2:
        reshard = plugin.reshard_after_forward
        hybrid = run.strategy.sharding == "hybrid-shard"
        base = "fsdp-hybrid-shard" if hybrid else "fsdp-full-shard" if reshard else "fsdp-shard-grad-op"
        offloads = type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy"
        knobs["reshard_after_forward"] = reshard
        said = f"FSDP2, reshard_after_forward {reshard}"
    else:
        base = f"fsdp1-{SHARDINGS.get(plugin.sharding_strategy.name, run.strategy.sharding)}"
        offloads = bool(plugin.cpu_offload.offload_params)
        knobs |= {
            "backward_prefetch": {"BACKWARD_PRE": "pre", "BACKWARD_POST": "post"}.get(
                getattr(plugin.backward_prefetch, "name", ""), "none"
            ),
            "forward_prefetch": int(bool(plugin.forward_prefetch)),
            "limit_all_gathers": bool(plugin.limit_all_gathers),
            "use_orig_params": bool(plugin.use_orig_params),
        }
        said = f"FSDP1, {plugin.sharding_strategy.name}, use_orig_params {bool(plugin.use_orig_params)}"
    strategy = replace(run.strategy, base=base, params="cpu" if offloads else None)
    said += ", parameters on the host" if offloads else ""
    return replace(run, strategy=strategy, settings=replace(run.settings, knobs=knobs)), said


def upcast(model: Any) -> None:
    """Before FSDP2 shards it, a model that trains in mixed precision is held in fp32 (fsdp2_prepare_model)."""
    import torch

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.float32)


def upcast_flat(module: Any) -> None:
    """After FSDP1 has sharded it, its flat parameters are made fp32 (Accelerator.prepare_model)."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    for unit in FullyShardedDataParallel.fsdp_modules(module):
        if unit._has_params and unit._flat_param.requires_grad and unit._flat_param.dtype != torch.float32:
            unit._flat_param.data = unit._flat_param.data.to(torch.float32)
            unit._handle._orig_param_dtype = torch.float32
