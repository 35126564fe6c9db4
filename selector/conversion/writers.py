"""A plan as the files of each engine. The keys are those that the engines' parsers read; tests hold them to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimators.knobs import KNOBS
from estimators.readers.reading import AUTO
from selector.conversion.plan import PURE, Plan
from selector.launch import PORT, mesh

HEAD = "HEAD_NODE_ADDRESS"  # of main_process_ip, where nobody said it
_LAUNCHER = (
    "deepspeed_multinode_launcher", "deepspeed_hostfile", "deepspeed_exclusion_filter", "deepspeed_inclusion_filter",
)  # fmt: skip
_BASE = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "machine_rank": 0,
    "main_training_function": "main",
    "num_machines": 1,
    "rdzv_backend": "static",
    "same_network": True,
    "use_cpu": False,
}
_ENGINE_KEYS = ("deepspeed_config", "fsdp_config", "parallelism_config", "mixed_precision", "distributed_type")
_ARGUMENT_KEYS = ("deepspeed", "fsdp", "fsdp_config")
_ZERO_KEYS = {knob.name: knob.key for knob in KNOBS if "zero3" in knob.strategies and "." not in knob.key}
_CUDA_NAMES = {
    "shard-grad-op": "SHARD_GRAD_OP",
    "full-shard": "FULL_SHARD",
    "hybrid-shard": "HYBRID_SHARD",
    "no-shard": "NO_SHARD",
}


def mixed_precision(plan: Plan) -> str:
    """accelerate's word: 16-bit weights and states are 'no' with a model that is loaded in 16 bit."""
    word = plan.precision or ""
    return word.removesuffix("-mixed") if word.endswith("-mixed") else "no"


# ----------------------------------------------------------------------------------------------------------- DeepSpeed


def deepspeed(plan: Plan, hugging_face: bool) -> dict[str, Any]:
    """A DeepSpeed JSON. Under Hugging Face what is not known is 'auto'; else the micro-batch becomes 1."""
    made: dict[str, Any] = {}
    fallback: Any = AUTO if hugging_face else None
    micro = plan.micro_batch or fallback or 1
    for key, value in (
        ("train_micro_batch_size_per_gpu", micro),
        ("gradient_accumulation_steps", plan.grad_accum or fallback),
        ("gradient_clipping", plan.clipping if plan.clipping is not None else fallback),
    ):
        if value is not None:
            made[key] = value
    made |= _precision(plan, hugging_face)
    if plan.reduce_dtype:
        made["communication_data_type"] = plan.reduce_dtype
    if plan.accumulate_dtype:
        made["data_types"] = {"grad_accum_dtype": plan.accumulate_dtype}
    made["zero_optimization"] = _zero(plan)
    return made


def _precision(plan: Plan, hugging_face: bool) -> dict[str, Any]:
    word = plan.precision or ""
    if word == "bf16":
        return {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}
    for name in PURE:
        if word.startswith(name):
            return {name: {"enabled": True}}
    return {"bf16": {"enabled": AUTO}, "fp16": {"enabled": AUTO}} if hugging_face and not word else {}


def _zero(plan: Plan) -> dict[str, Any]:
    strategy = plan.strategy
    zero: dict[str, Any] = {"stage": strategy.stage}
    for role, where in (("offload_optimizer", strategy.optimizer), ("offload_param", strategy.params)):
        if where:
            zero[role] = {"device": where, **({"nvme_path": "/local_nvme"} if where == "nvme" else {})}
    for name, value in strategy.options.items():
        if name == "pin_memory":
            for role in ("offload_optimizer", "offload_param"):
                if role in zero:
                    zero[role]["pin_memory"] = value
        elif name in _ZERO_KEYS:
            zero[_ZERO_KEYS[name]] = value
    if strategy.stage == 3 and plan.whole_on_save is not None:
        zero["stage3_gather_16bit_weights_on_model_save"] = plan.whole_on_save
    return zero


# ---------------------------------------------------------------------------------------------------------- accelerate


def accelerate(plan: Plan, source: Mapping[str, Any]) -> dict[str, Any]:
    """An accelerate YAML; what the source (one as well) says of machines and processes stays."""
    made = {**_BASE, **{k: v for k, v in source.items() if k not in _ENGINE_KEYS}}
    if plan.processes:
        made["num_processes"] = plan.processes
    if plan.machines:
        made["num_machines"] = plan.machines
    made.setdefault("num_processes", -1)  # accelerate's own word for: given at launch
    if int(made["num_machines"]) > 1:
        made["main_process_ip"] = made.get("main_process_ip") or HEAD
        made["main_process_port"] = made.get("main_process_port") or PORT
    engine = plan.strategy.engine
    made["mixed_precision"] = mixed_precision(plan)
    if engine == "deepspeed":
        block = source.get("deepspeed_config")
        launcher = {k: block[k] for k in _LAUNCHER if k in block} if isinstance(block, Mapping) else {}
        if int(made["num_machines"]) > 1:  # the others start all nodes by ssh, from a hostfile
            launcher.setdefault("deepspeed_multinode_launcher", "standard")
        made |= {"distributed_type": "DEEPSPEED", "deepspeed_config": inline(plan) | launcher}
    elif engine in ("fsdp1", "fsdp2"):
        made |= {"distributed_type": "FSDP", "fsdp_config": fsdp(plan)}
        if plan.strategy.sharding == "hybrid-shard" and engine == "fsdp2" and plan.processes:
            shard = int(plan.strategy.options.get("shard") or plan.processes // (plan.machines or 1))
            made["parallelism_config"] = mesh(max(plan.processes // shard, 1), shard)
    else:
        made["distributed_type"] = "NO" if plan.processes == 1 else "MULTI_GPU"
    return dict(sorted(made.items()))


def placeholders(made: Mapping[str, Any], is_open: bool) -> dict[str, str]:
    """Keys of an accelerate file that somebody has to fill in, and with what. ``is_open``: the source leaves the
    precision to the Trainer's arguments."""
    machines, found = int(made["num_machines"]), dict[str, str]()
    if is_open:
        found["mixed_precision"] = "'auto' in the source: bf16 or fp16, unless the Trainer's own arguments say it"
    if made["num_processes"] == -1:
        found["num_processes"] = "the GPUs of all nodes: give --gpus here, or --num_processes at launch"
    if machines > 1:
        if made["main_process_ip"] == HEAD:
            found["main_process_ip"] = "the address of the first node, or --main_process_ip at launch"
        others = "1 on the other" if machines == 2 else f"1 to {machines - 1} on the others"
        found["machine_rank"] = f"0 is the first node's: {others}, or --machine_rank at launch"
    return found


def inline(plan: Plan) -> dict[str, Any]:
    """``deepspeed_config`` without a file: accelerate builds the JSON."""
    strategy = plan.strategy
    made: dict[str, Any] = {
        "zero_stage": strategy.stage,
        "offload_optimizer_device": strategy.optimizer or "none",
        "offload_param_device": strategy.params or "none",
        "zero3_init_flag": strategy.stage == 3 and plan.sharded_load is not False,
    }
    if strategy.stage == 3:
        made["zero3_save_16bit_model"] = bool(plan.whole_on_save)
    if plan.grad_accum is not None:
        made["gradient_accumulation_steps"] = plan.grad_accum
    if plan.clipping is not None:
        made["gradient_clipping"] = plan.clipping
    return made


def fsdp(plan: Plan) -> dict[str, Any]:
    """``fsdp_config`` of accelerate, every value stated."""
    strategy = plan.strategy
    first = strategy.engine == "fsdp1"
    made: dict[str, Any] = {"fsdp_version": 1 if first else 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    if plan.wrap_classes:
        made["fsdp_transformer_layer_cls_to_wrap"] = ",".join(plan.wrap_classes)
    if first:
        made |= {
            "fsdp_sharding_strategy": _CUDA_NAMES[strategy.sharding],
            "fsdp_use_orig_params": True,
            "fsdp_backward_prefetch": "BACKWARD_PRE",
            "fsdp_sync_module_states": True,
        }
    else:
        made["fsdp_reshard_after_forward"] = strategy.sharding != "shard-grad-op"
    made["fsdp_offload_params"] = bool(strategy.params)
    made["fsdp_state_dict_type"] = "FULL_STATE_DICT" if plan.whole_on_save else "SHARDED_STATE_DICT"
    if plan.sharded_load is not None:
        made["fsdp_cpu_ram_efficient_loading"] = plan.sharded_load
    if plan.checkpointing is not None:
        made["fsdp_activation_checkpointing"] = plan.checkpointing
    return made


# ---------------------------------------------------------------------------------------------------- TrainingArguments


def arguments(plan: Plan, source: Mapping[str, Any]) -> dict[str, Any]:
    """TrainingArguments with the engine exchanged; everything else stays."""
    made = {k: v for k, v in source.items() if k not in _ARGUMENT_KEYS}
    engine = plan.strategy.engine
    if engine == "deepspeed":
        made["deepspeed"] = deepspeed(plan, hugging_face=True)
    elif engine in ("fsdp1", "fsdp2"):
        named = {k.removeprefix("fsdp_"): v for k, v in fsdp(plan).items()}
        named["cpu_offload"] = named.pop("offload_params")
        named.pop("activation_checkpointing", None)  # the Trainer's own argument says it
        classes = named.pop("transformer_layer_cls_to_wrap", None)
        if classes:
            named["transformer_layer_cls_to_wrap"] = classes.split(",")
        named.pop("sharding_strategy", None)
        made |= {"fsdp": True, "fsdp_config": named}
    return made
