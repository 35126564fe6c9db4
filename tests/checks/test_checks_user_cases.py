"""Public cases of users: the configuration as reported, and the rules that would have helped; ids name the threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators.cluster import parse_cluster
from tests.checks.building import Part, accel, args, ds, found, fsdp, py

CPU = {"device": "cpu"}
TRAINER = "from transformers import AutoModelForCausalLM, TrainingArguments\n"
INT8 = TRAINER + "m = AutoModelForCausalLM.from_pretrained('x', load_in_8bit=True, device_map={'': 0})\n"
ZERO3_YAML = {"zero_stage": 3, "zero3_init_flag": True, "offload_param_device": "cpu", "zero3_save_16bit_model": False}
FULL_OFFLOAD = ds(3, {"bf16": {"enabled": True}}, offload_optimizer=CPU, offload_param=CPU)
BATCH = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}
AUTO = {k: "auto" for k in ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")}
NVME = {"device": "nvme", "nvme_path": "/mnt/nvme1", "pin_memory": True}
LATE = TRAINER + "m = AutoModelForCausalLM.from_pretrained('x')\na = TrainingArguments(output_dir='o')\n"

Case = tuple[tuple[Part, ...], dict[str, Any], set[str]]
CASES: dict[str, Case] = {
    "LLaVA#528": ((ds(3),), {"cluster": "1xA100"}, {"zero-world-size-1"}),
    "DeepSpeed#2992": ((ds(2),), {"model": "gpt2", "cluster": "4xT4"}, {"bucket-larger-than-model"}),
    "DeepSpeed#6914": ((ds(2, BATCH),), {"cluster": "4xA100"}, {"ds-batch-ok-but-world1"}),
    "LLaMA-Factory#3493": (
        (ds(3, {"bf16": {"enabled": "true"}, "fp16": {"enabled": "false"}}), args(bf16=True)),
        {},
        {"ds-bool-as-string"},
    ),
    "BELLE#154": ((ds(2, {"fp16": {"enabled": True}}), args(fp16=False)), {}, {"hf-ds-mismatch"}),
    "DeepSpeed#2977": (
        (ds(2, offload_param=CPU | {"pin_memory": True}, offload_optimizer=CPU | {"pin_memory": True}),),
        {},
        {"offload-param-needs-stage3"},
    ),
    "peft#306": (
        (accel("DEEPSPEED", mixed_precision="fp8", deepspeed_config=ZERO3_YAML), py(INT8)),
        {"cluster": "4xA10"},
        {"zero3-device-map", "bnb-8bit-zero3", "fp8-arch", "accel-zero3-save-16bit"},
    ),
    "LLaMA-Factory#3949": (
        (FULL_OFFLOAD, args(use_unsloth=True, cutoff_len=11000, bf16=True)),
        {},
        {"unsloth-with-sharding"},
    ),
    "FAI-RL PR68": ((ds(3), py(LATE)), {}, {"zero3-init-order"}),
    "instructlab#678": (
        (fsdp(1, {"num_processes": 2}, sharding_strategy="HYBRID_SHARD"),),
        {"cluster": "8xA100"},
        {"hybrid-world-size"},
    ),
    "accelerate PR4180": (
        (fsdp(2, {"num_processes": 2, "parallelism_config": {"parallelism_config_tp_size": 2}}),),
        {},
        {"fsdp2-no-shard-dim"},
    ),
    "BCEmbedding#66": (
        (fsdp(1, {"num_processes": 1}, sharding_strategy=3, transformer_layer_cls_to_wrap="BertLayer"),),
        {"model": "llama-8b"},
        {"fsdp-wrap-class", "fsdp-noshard-or-1proc"},
    ),
    "DeepSpeed#1627": (
        (ds(3, offload_optimizer={"device": "nvme", "nvme_path": "/nvme", "buffer_size": 2e9}, offload_param=CPU),),
        {},
        {"nvme-misplaced-keys"},
    ),
    "DeepSpeed#5124": ((ds(3, offload_optimizer=NVME),), {}, {"nvme-needs-path-aio"}),
    "FastChat#399": (
        (args(bf16=True, tf32=True, fsdp="full_shard auto_wrap"),),
        {"cluster": "8xV100-32GB"},
        {"bf16-needs-ampere", "tf32-needs-ampere"},
    ),
    "LLaMA-Factory#6372": (
        (ds(3, zero_hpz_partition_size=8, offload_optimizer=CPU),),
        {"cluster": "2x8xA100-40GB"},
        {"hpz-with-offload"},
    ),
    "HYBRID_SHARD of 72B": (
        (fsdp(1, sharding_strategy="HYBRID_SHARD"),),
        {"model": "qwen2-72b", "cluster": "4x8xA100-40GB"},
        {"hybrid-memory"},
    ),
    "trl#3858": (
        (FULL_OFFLOAD, args(bf16=True, ds3_gather_for_generation=False)),
        {},
        {"trl-ds3-gather-false"},
    ),
    "transformers#36626": (
        (args(save_only_model=True, fsdp=True, fsdp_config={"version": 2, "state_dict_type": "SHARDED_STATE_DICT"}),),
        {},
        {"save-only-model-sharded"},
    ),
    "Lightning PR17790": ((ds(2, offload_optimizer=True),), {}, {"ds-offload-object"}),
    "accelerate#570": (
        (fsdp(1, auto_wrap_policy="SIZE_BASED_WRAP"),),
        {"model": "gpt2"},
        {"fsdp-size-wrap-tied", "fsdp-min-num-params-too-small"},
    ),
    "Qwen3#804": (
        (FULL_OFFLOAD,),
        {"model": "qwen2-72b", "cluster": "8xA100-80GB", "host_memory": "800GB"},
        {"host-ram-insufficient"},
    ),
    "LLaMA-Factory#1931": (
        (ds(2),),
        {"model": "llama-70b", "cluster": "64xA100-80GB", "method": "full"},
        {"ds-replicated-part-exceeds-gpu"},
    ),
}


@pytest.mark.parametrize("thread", CASES)
def test_user_case(thread: str, tmp_path: Path) -> None:
    parts, known, rules = CASES[thread]
    known = dict(known)
    host = known.pop("host_memory", None)
    if "cluster" in known:
        known["cluster"] = parse_cluster(known["cluster"], host_memory=host)
    assert rules <= {finding.rule for finding in found(tmp_path, parts, **known)}


def test_a_composite_model_has_a_hidden_size_in_transformers_5(tmp_path: Path) -> None:
    """Idefics2 (transformers#22176 and others): text_config fills the buckets since."""
    findings = found(tmp_path, (ds(3, **AUTO), args()), model="llava-1.5-7b", cluster="4xA100")
    assert "ds-auto-hidden-size" not in {finding.rule for finding in findings}
