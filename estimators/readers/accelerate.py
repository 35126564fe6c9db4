"""The YAML (or JSON) of ``accelerate config`` -> strategy and workload, as ``accelerate launch`` 1.15 reads it.

The launcher turns most values into text and back into booleans, so ``'no'`` and ``false`` mean the same; and it has
defaults of its own (``use_orig_params`` true, ``auto_wrap_policy`` NO_WRAP, ``fsdp_version`` 1), which a reading gives
as values that were not ``given``. Sources: accelerate commands/launch.py, utils/launch.py, utils/dataclasses.py.
"""

from __future__ import annotations

from estimators.readers import fsdp
from estimators.readers.deepspeed import read_deepspeed
from estimators.readers.follow import follow
from estimators.readers.names import names
from estimators.readers.reading import Draft, Value
from estimators.readers.section import Section

_PRECISION = {"no": "fp32", "bf16": "bf16-mixed", "fp16": "fp16-mixed", "fp8": "bf16-mixed"}
_OTHER_DEVICES = ("MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_HPU", "MULTI_NEURON")
_NOT_MODELLED = ("MEGATRON_LM", "XLA", "TP", "MULTI_CPU")
_DISTRIBUTED = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", *_OTHER_DEVICES, *_NOT_MODELLED)
KNOWN = names(
    """compute_environment distributed_type mixed_precision use_cpu debug num_processes machine_rank num_machines
    gpu_ids main_process_ip main_process_port rdzv_backend same_network main_training_function enable_cpu_affinity
    fp8_config deepspeed_config fsdp_config parallelism_config megatron_lm_config mpirun_config downcast_bf16 tpu_name
    tpu_zone tpu_use_cluster tpu_use_sudo command_file commands tpu_vm tpu_env dynamo_config dynamo_backend fp16
    ec2_instance_type iam_role_name image_uri profile region base_job_name pytorch_version transformers_version
    py_version sagemaker_inputs_file sagemaker_metrics_file additional_args"""
)
_DEEPSPEED_OTHER = names(
    """deepspeed_multinode_launcher deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter"""
)
# DeepSpeedPlugin._deepspeed_config_checks: with a file, these would be read by nobody, and accelerate refuses them.
_ONLY_WITHOUT_FILE = (
    "gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device",
    "offload_param_device", "offload_optimizer_nvme_path", "offload_param_nvme_path", "zero3_save_16bit_model",
)  # fmt: skip
# Read by FSDP1 alone; in version 2 the launcher's values reach nobody.
_FSDP1_ONLY = ("fsdp_sharding_strategy", "fsdp_backward_prefetch", "fsdp_forward_prefetch", "fsdp_use_orig_params",
               "fsdp_sync_module_states")  # fmt: skip
_UNKNOWN_FSDP = "unknown to accelerate's launcher, which passes it to nobody"


def read_accelerate(section: Section, draft: Draft, ranks: int | None = None) -> None:
    """Collect the file into the draft. Raises ``InputError`` and ``IllegalCombination``."""
    kind = _distributed_type(section)
    draft.num_machines = section.whole("num_machines", 1, 2**20)
    processes = section.whole("num_processes", -1, 2**20)
    draft.num_processes = 1 if kind == "NO" else processes if processes and processes > 0 else None
    if kind == "MULTI_GPU" and draft.num_processes == 1:
        raise section.contradiction("num_processes", "1 with distributed_type MULTI_GPU; write 2 or more, or 'NO'")
    draft.field("stack", section.found("distributed_type", "accelerate", given=False))
    precision = _precision(section, draft)
    _compile(section, draft)
    if kind == "DEEPSPEED":
        _deepspeed(section, draft, ranks or draft.num_processes, precision)
    elif kind == "FSDP":
        _fsdp(section, draft)
    else:
        draft.base = "single" if kind == "NO" else "ddp"
        draft.values["distributed_type"] = section.found("distributed_type", kind)
    if kind in _OTHER_DEVICES:
        draft.notes.append(f"distributed_type {kind}: estimated as DDP on GPUs")
    if kind in _NOT_MODELLED:
        draft.gaps["strategy"] = f"distributed_type {kind} is not modelled"
    if section.flag("use_cpu", text=True):
        draft.notes.append("use_cpu: the file trains on the CPU; the estimate is for GPUs")
    for key, owner in (("deepspeed_config", "DEEPSPEED"), ("fsdp_config", "FSDP")):
        if section.data.get(key) and kind != owner:
            section.ignore(draft, key, f"read under distributed_type {owner} only")
    section.leftover(draft, KNOWN, "no effect on memory", "unknown to accelerate 1.15, which refuses the file")


def _distributed_type(section: Section) -> str:
    if section.raw("distributed_type") is False:  # NO without quotes is a boolean in YAML, and accelerate lets it pass
        return "NO"
    kind = section.word("distributed_type", _DISTRIBUTED)
    if kind is None:
        raise section.error("distributed_type", "is absent; write MULTI_GPU, FSDP, DEEPSPEED or 'NO'")
    return kind


def _precision(section: Section, draft: Draft) -> str | None:
    key = "mixed_precision"
    value = section.raw(key)
    if value is None and section.flag("fp16", text=True):  # files of accelerate before 0.6
        draft.field("precision", section.found("fp16", "fp16-mixed"))
        return "fp16"
    if isinstance(value, bool):
        raise section.error(key, f"{str(value).lower()} is a boolean (YAML reads no without quotes so); write 'no'")
    word = section.word(key, _PRECISION, str.lower)
    if word == "fp8":
        draft.gaps["precision"] = "mixed_precision fp8 is not modelled; give --precision bf16-mixed for its bf16 part"
    draft.field("precision", section.found(key, _PRECISION[word or "no"], word is not None))
    return word


def _compile(section: Section, draft: Draft) -> None:
    block = section.section("dynamo_config")
    key = "dynamo_backend" if block is None or "dynamo_backend" in block else "backend"
    place = block or section
    backend = place.word(key, fold=str.upper) if place.raw(key) is not False else None
    if backend and backend != "NO":
        draft.field("compile", place.found(key, True))


# ----------------------------------------------------------------------------------------------------------- DeepSpeed


def _deepspeed(section: Section, draft: Draft, ranks: int | None, precision: str | None) -> None:
    block = section.section("deepspeed_config") or Section(section.document, {}, "deepspeed_config.")
    if "deepspeed_config_file" in block:
        _deepspeed_file(section, block, draft, ranks, precision)
    else:
        _deepspeed_inline(block, draft)
    init = block.flag("zero3_init_flag", text=True)
    if draft.base == "zero3":
        draft.option("zero_init", block.found("zero3_init_flag", init is not False, init is not None))
    elif init:
        block.ignore(draft, "zero3_init_flag", "stage 3 only")
    if classes := block.words("deepspeed_moe_layer_cls_names"):
        draft.facts["leaf_classes"] = block.found("deepspeed_moe_layer_cls_names", classes)
    unknown = "not read here; DeepSpeed's own keys belong in deepspeed_config_file"
    block.leftover(draft, _DEEPSPEED_OTHER, "no effect on memory", unknown)


def _deepspeed_file(section: Section, block: Section, draft: Draft, ranks: int | None, precision: str | None) -> None:
    for key in _ONLY_WITHOUT_FILE:
        if key in block:
            raise block.contradiction(key, "accelerate refuses it beside deepspeed_config_file; keep it in that file")
    if precision is not None:
        raise section.contradiction(
            "mixed_precision", "accelerate refuses it beside deepspeed_config_file; enable bf16 or fp16 in that file"
        )
    inner = follow(block, "deepspeed_config_file", draft)
    if "zero_optimization" not in inner:
        raise inner.error("zero_optimization", 'is absent, which accelerate refuses; write {"stage": 2}')
    read_deepspeed(inner, draft, ranks, default_stage=2)


def _deepspeed_inline(block: Section, draft: Draft) -> None:
    """accelerate builds the JSON itself, and DeepSpeed's defaults hold for the rest."""
    stage = block.whole("zero_stage", 0, 3)
    draft.base = f"zero{2 if stage is None else stage}"
    draft.values["stage"] = block.found("zero_stage", 2 if stage is None else stage, stage is not None)
    for key, name in (("offload_optimizer_device", "offload_optimizer"), ("offload_param_device", "offload_param")):
        device = block.word(key, ("none", "cpu", "nvme"), str.lower)
        if device in ("cpu", "nvme"):
            draft.values[name] = block.found(key, device)
            if name == "offload_optimizer":
                draft.optimizer = device
            else:
                draft.params = device
        path_key = key.replace("device", "nvme_path")
        if path := block.word(path_key):
            draft.facts[f"{name}.nvme_path"] = block.found(path_key, path)
            if device == "nvme":
                draft.notes.append(f"{block.where(path_key)}: accelerate launch does not pass it on; use a file")
    if (steps := block.whole("gradient_accumulation_steps", 1, 2**20, auto=True)) is not None:
        draft.field("grad_accum", block.found("gradient_accumulation_steps", steps))
    if (clipping := block.number("gradient_clipping", auto=True)) is not None:
        draft.facts["gradient_clipping"] = block.found("gradient_clipping", clipping)
    save = block.flag("zero3_save_16bit_model", text=True)
    if draft.base == "zero3":
        draft.option("gather_16bit_on_save", block.found("zero3_save_16bit_model", bool(save), save is not None))
    elif save:
        block.ignore(draft, "zero3_save_16bit_model", "stage 3 only")


# ---------------------------------------------------------------------------------------------------------------- FSDP


def _fsdp(section: Section, draft: Draft) -> None:
    block = section.section("fsdp_config") or Section(section.document, {}, "fsdp_config.")
    block = block.renamed(lambda key: key if key.startswith("fsdp") else "fsdp_" + key)  # commands/launch.py
    version = block.whole("fsdp_version", 1, 2) or 1
    draft.facts["fsdp_version"] = block.found("fsdp_version", version, "fsdp_version" in block)
    if "fsdp_version" not in block:
        draft.notes.append("fsdp_version is absent: accelerate 1.15 starts FSDP1; the Trainer's own default is 2")
    (_fsdp2 if version == 2 else _fsdp1)(section, block, draft)
    if block.flag("fsdp_offload_params", text=True):
        draft.params = "cpu"
        draft.values["offload_param"] = block.found("fsdp_offload_params", "cpu")
    policy = fsdp.one_of(block, "fsdp_auto_wrap_policy", fsdp.WRAPPING)
    fsdp.put_wrapping(block, draft, "fsdp_auto_wrap_policy", policy, "fsdp_transformer_layer_cls_to_wrap", "NO_WRAP")
    if (least := block.whole("fsdp_min_num_params")) is not None:
        draft.facts["min_num_params"] = block.found("fsdp_min_num_params", least)
    fsdp.put_state_dict(
        block, draft, "fsdp_state_dict_type", "SHARDED_STATE_DICT" if version == 2 else "FULL_STATE_DICT"
    )
    _loading(block, draft)
    _checkpointing(block, draft, version)
    block.leftover(draft, ("fsdp_ignored_modules",), "not estimated", _UNKNOWN_FSDP)


def _fsdp1(section: Section, block: Section, draft: Draft) -> None:
    key = "fsdp_sharding_strategy"
    sharding = fsdp.one_of(block, key, fsdp.SHARDING)
    fsdp.put_fsdp1_sharding(
        draft, sharding or "FULL_SHARD", block.found(key, sharding or "FULL_SHARD", sharding is not None)
    )
    reshard = block.raw("fsdp_reshard_after_forward")
    if reshard is not None:
        block.ignore(draft, "fsdp_reshard_after_forward", "FSDP1 follows fsdp_sharding_strategy alone")
        if sharding is None and str(reshard).upper() not in ("FULL_SHARD", "TRUE"):
            draft.notes.append(f"fsdp_reshard_after_forward {reshard!s:.40}: FSDP1 does not read it and shards fully")
    if section.data.get("parallelism_config"):
        raise section.contradiction("parallelism_config", "needs fsdp_version 2; write it in fsdp_config")
    prefetch = fsdp.one_of(block, "fsdp_backward_prefetch", tuple(fsdp.PREFETCH))
    draft.option(
        "backward_prefetch",
        block.found("fsdp_backward_prefetch", fsdp.PREFETCH[prefetch or "NO_PREFETCH"], prefetch is not None),
    )
    if (forward := block.flag("fsdp_forward_prefetch", text=True)) is not None:
        draft.option("forward_prefetch", block.found("fsdp_forward_prefetch", int(forward)))
    original = block.flag("fsdp_use_orig_params", text=True)
    draft.option("use_orig_params", block.found("fsdp_use_orig_params", original is not False, original is not None))


def _fsdp2(section: Section, block: Section, draft: Draft) -> None:
    key = "fsdp_reshard_after_forward"
    reshard = block.flag(key, text=True)
    draft.base = "fsdp-shard-grad-op" if reshard is False else "fsdp-full-shard"
    draft.values["sharding"] = block.found(key, reshard is not False, reshard is not None)
    sharding = block.raw("fsdp_sharding_strategy")
    if sharding is not None and reshard is None and str(sharding).upper() not in ("FULL_SHARD", "1"):
        draft.notes.append(f"fsdp_sharding_strategy {sharding!s:.40}: FSDP2 does not read it and shards fully")
    for name in _FSDP1_ONLY:
        if name in block and name != "fsdp_sync_module_states":  # that one is checked with the loading
            block.ignore(draft, name, "not read in fsdp_version 2")
    _parallelism(section, draft, reshard)


def _parallelism(section: Section, draft: Draft, reshard: bool | None) -> None:
    block = section.section("parallelism_config")
    if block is None:
        return
    degree = {
        name: block.whole(f"parallelism_config_{name}_size", 1, 2**20) or 1
        for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")
    }
    beyond = [name for name in ("tp", "cp", "sp") if degree[name] > 1]
    if beyond:
        draft.gaps["strategy"] = f"parallelism_config with {', '.join(beyond)} above 1 is not modelled"
    elif degree["dp_replicate"] > 1 and degree["dp_shard"] > 1:
        draft.base = "fsdp-hybrid-shard"
        draft.option("shard", block.found("parallelism_config_dp_shard_size", degree["dp_shard"]))
        if reshard is False:
            draft.gaps["strategy"] = "hybrid sharding without resharding is not modelled"
    elif degree["dp_replicate"] > 1:
        raise block.contradiction(
            "parallelism_config_dp_replicate_size",
            "above 1 needs parallelism_config_dp_shard_size above 1; plain data parallelism is MULTI_GPU",
        )
    block.leftover(draft, [key for key in block.data if key.startswith("parallelism_config_")], "no effect", "unknown")


def _loading(block: Section, draft: Draft) -> None:
    """Rank 0 loads and broadcasts. The launcher's own check looks at Python truth, in every version."""
    loading, sync = "fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states"
    if block.data.get(loading, True) and not block.data.get(sync, True):
        absent = "" if loading in block else " (the launcher's default)"
        raise block.contradiction(sync, f"false with {loading} true{absent}; write true, or both false")
    fsdp.put_flag_fact(block, draft, loading, True)
    fsdp.put_flag_fact(block, draft, sync, True)


def _checkpointing(block: Section, draft: Draft, version: int) -> None:
    on_key, offload_key = "fsdp_activation_checkpointing", "fsdp_activation_checkpointing_offload"
    on, offload = block.flag(on_key, text=True), block.flag(offload_key, text=True)
    if offload and not on:
        raise block.contradiction(offload_key, f"needs {on_key} true")
    if offload and version != 2:
        raise block.contradiction(offload_key, "needs fsdp_version 2")
    if on:
        place: Value = block.found(offload_key, "offload") if offload else block.found(on_key, "full")
        draft.field("checkpointing", place)
    elif on is False:
        draft.facts["activation_checkpointing"] = block.found(on_key, False)
