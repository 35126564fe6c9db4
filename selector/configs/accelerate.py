"""The YAML of ``accelerate launch --config_file``: which engine, how many processes, and the engine's settings.

What the launcher reads: accelerate 1.15 commands/launch.py, utils/launch.py; what the plugins make of it:
utils/dataclasses.py. The Trainer takes its engine from here too.
"""

from __future__ import annotations

from typing import Any

from estimators.run import Run
from selector.configs import refusal
from selector.configs.wrapping import block_classes
from selector.launch import mesh

# Knobs that the YAML, or the script beside it, can say.
_SCRIPT = ("sync_each_batch",)
SAYABLE = {
    "fsdp2": ("shard", "wrap", "reshard_after_forward", *_SCRIPT),
    "fsdp1": ("shard", "wrap", "forward_prefetch", "backward_prefetch", "use_orig_params", *_SCRIPT),
}
PREFETCH = {"pre": "BACKWARD_PRE", "post": "BACKWARD_POST", "none": "NO_PREFETCH"}


def config(run: Run) -> dict[str, Any]:
    """The configuration as plain data. Raises ``IllegalCombination`` for what the launcher has no word for."""
    made: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": _distributed_type(run),
        "downcast_bf16": "no",
        "enable_cpu_affinity": False,
        "machine_rank": 0,
        "main_training_function": "main",
        "num_machines": run.cluster.nodes,
        "num_processes": run.ranks,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if run.strategy.engine == "deepspeed":
        return {**made, "deepspeed_config": _deepspeed(run)}  # mixed_precision beside a file is refused
    made["mixed_precision"] = _precision(run)
    if run.strategy.engine in ("fsdp1", "fsdp2"):
        made["fsdp_config"] = _fsdp(run)
        if run.strategy.base == "fsdp-hybrid-shard":
            made["parallelism_config"] = _mesh(run)
    return made


def _distributed_type(run: Run) -> str:
    if run.strategy.engine == "deepspeed":
        return "DEEPSPEED"
    if run.strategy.engine in ("fsdp1", "fsdp2"):
        return "FSDP"
    return "MULTI_GPU" if run.ranks > 1 else "NO"


def _precision(run: Run) -> str:
    """Pure 16 bit needs no policy: everything has that dtype already."""
    return run.settings.compute_dtype if run.workload.precision.endswith("-mixed") else "no"


def _deepspeed(run: Run) -> dict[str, Any]:
    made: dict[str, Any] = {"deepspeed_config_file": "ds_config.json", "deepspeed_multinode_launcher": "standard"}
    if run.strategy.stage == 3:
        made["zero3_init_flag"] = bool(run.settings.knobs["zero_init"])
    return made


def _fsdp(run: Run) -> dict[str, Any]:
    engine, knobs = run.strategy.engine, run.settings.knobs
    refusal.only_options(run, SAYABLE[engine], "accelerate's YAML")
    refusal.own_dtypes(run, ("param_dtype", "state_dtype", "adapter_dtype"), "accelerate's YAML")
    made: dict[str, Any] = {"fsdp_version": int(engine[-1]), **_units(run)}
    if engine == "fsdp2":
        reshard = knobs.get("reshard_after_forward", True)
        if not isinstance(reshard, bool):
            raise refusal.refuse(run, f"accelerate's YAML takes reshard_after_forward as true or false, not {reshard}")
        made["fsdp_reshard_after_forward"] = reshard and run.strategy.sharding != "shard-grad-op"
    else:
        made |= _fsdp1(run)
    # Every rank reads the checkpoint, as the estimate of host RAM says; rank 0 alone would need sync_module_states.
    return {
        **made,
        "fsdp_offload_params": bool(run.strategy.params),
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_activation_checkpointing": False,
    }


def _units(run: Run) -> dict[str, Any]:
    wrap = run.settings.knobs["wrap"]
    if wrap == "none":
        return {"fsdp_auto_wrap_policy": "NO_WRAP"}
    if "wrap" in run.strategy.options and run.settings.origins["wrap"] == "user" and not _own_units(run):
        raise refusal.refuse(run, f"accelerate chooses embedding and head as units itself, not wrap={wrap}")
    return {
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": ",".join(block_classes(run)),
    }


def _own_units(run: Run) -> bool:
    """Whether the wrap that the user asked for is what accelerate does by itself."""
    tied = f"{run.model.head}.weight" in run.model.tied
    own = "blocks" if run.strategy.engine == "fsdp1" or tied else "blocks+embedding+head"
    return run.settings.knobs["wrap"] == own


def _fsdp1(run: Run) -> dict[str, Any]:
    knobs, prefetch = run.settings.knobs, int(run.settings.knobs["forward_prefetch"])
    if prefetch > 1:
        raise refusal.refuse(run, f"FSDP1 prefetches one unit in forward or none, not {prefetch}")
    if run.strategy.sharding == "hybrid-shard" and knobs["shard"] != run.cluster.gpus_per_node:
        raise refusal.refuse(run, f"accelerate shards FSDP1's hybrid inside a node, not over {knobs['shard']} ranks")
    return {
        "fsdp_sharding_strategy": run.strategy.sharding.upper().replace("-", "_"),
        "fsdp_backward_prefetch": PREFETCH[str(knobs["backward_prefetch"])],
        "fsdp_forward_prefetch": bool(prefetch),
        "fsdp_use_orig_params": bool(knobs["use_orig_params"]),
        "fsdp_sync_module_states": False,
    }


def _mesh(run: Run) -> dict[str, int]:
    """HSDP: replicas x shards."""
    if run.shards == run.ranks or run.shards == 1:
        raise refusal.refuse(
            run, f"one shard group of {run.shards} over {run.ranks} ranks is no hybrid in accelerate's mesh",
            "use fsdp-full-shard, which holds the same" if run.shards > 1 else "use ddp",
        )  # fmt: skip
    return mesh(run.ranks // run.shards, run.shards)
