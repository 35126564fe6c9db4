"""Sections E, F, G: rule -> (parts, keywords) that fire it, and that do not."""

from __future__ import annotations

from pathlib import Path

from selector.checks.machine import Machine
from tests.checks.building import accel, args, ds, fsdp, py
from tests.checks.cases_deepspeed import A100, CPU, L8, L70, NVME, old
from tests.checks.cases_hugging_face import LOAD, MODEL

DDP = args(gradient_checkpointing=True, ddp_find_unused_parameters=True)
REENTRANT = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
MESH = "FSDP(m, device_mesh=x, auto_wrap_policy=p, sharding_strategy=ShardingStrategy.HYBRID_SHARD)\n"
IB = Machine(env={"NCCL_IB_DISABLE": "1"})
A10, V100 = {"cluster": "4xA10"}, {"cluster": "4xV100"}
BF16 = {"bf16": {"enabled": True}}
BUILD = Machine(has_gpu=True, cuda_toolkit="11.8.0", torch_cuda="12.4")
HOST = L70 | {"cluster": "8xA100-80GB"}
OFFLOAD = ds(3, BF16, offload_optimizer=CPU)
DEFAULT = Machine(default_config=Path(__file__).parent / "configs" / "default_config.yaml")

CASES = {
    "fsdp-mesh-hybrid-version": (((py(MESH),), old(torch="2.2.0")), ((py(MESH),), {})),
    "fsdp-ignored-frozen": (
        ((args(finetuning_type="lora"), py("fully_shard(m, ignored_params=['x'])\n")), {}),
        ((args(finetuning_type="lora"), py("fully_shard(m)\n")), {}),
    ),
    "fsdp-root-vocab": (((fsdp(1),), L8), ((fsdp(1),), {"model": "llama-2-7b"})),
    "ddp-bucket-copy": (((py("m = DDP(model)\n"),), {}), ((py("m = DDP(model, gradient_as_bucket_view=True)\n"),), {})),
    "ddp-gc-find-unused": (((DDP,), old(transformers="4.50.0")), ((args(gradient_checkpointing=True),), {})),
    "ddp-reentrant": (
        ((args(finetuning_type="lora", **REENTRANT),), {}),
        ((args(finetuning_type="lora", gradient_checkpointing=True),), {}),
    ),
    "fits-on-one-gpu-use-ddp": (
        ((ds(3, BF16),), {"model": "gpt2", "cluster": "4xA100-80GB"}),
        ((ds(3, BF16),), L70 | A100),
    ),
    "adam-foreach-temp": (((args(optim="adamw_torch"),), {}), ((args(optim="adamw_torch_fused"),), {})),
    "trainer-fp16-bf16-both": (((args(fp16=True, bf16=True),), {}), ((args(fp16=False, bf16=True),), {})),
    "fp16-amp-trainable-fp16": (
        ((args(fp16=True), py(LOAD + MODEL.format(", dtype=torch.float16"))), {}),
        ((args(fp16=True), py(LOAD + MODEL.format(", dtype=torch.float32"))), {}),
    ),
    "fp16-on-bf16-model": (
        ((args(fp16=True),), {"model": "qwen2.5-7b", **A100}),
        ((args(bf16=True),), {"model": "qwen2.5-7b", **A100}),
    ),
    "save-only-load-best": (
        ((fsdp(), args(save_only_model=True, load_best_model_at_end=True)), {}),
        ((fsdp(), args(save_only_model=True)), {}),
    ),
    "save-only-model-sharded": (
        ((fsdp(2, state_dict_type="SHARDED_STATE_DICT"), args(save_only_model=True)), {}),
        ((fsdp(2, state_dict_type="FULL_STATE_DICT"), args(save_only_model=True)), {}),
    ),
    "peft-modules-to-save-cost": (
        ((args(lora_modules_to_save=["embed_tokens", "lm_head"]),), L8),
        ((args(lora_modules_to_save=["norm"]),), L8),
    ),
    "logits-memory": (
        ((args(bf16=True, max_length=8192, per_device_train_batch_size=4),), L8 | A100),
        ((args(bf16=True, max_length=512, per_device_train_batch_size=1),), L8 | A100),
    ),
    "no-checkpointing-long": (
        ((args(gradient_checkpointing=False, max_length=4096),), L8),
        ((args(gradient_checkpointing=True, max_length=4096),), L8),
    ),
    "dpo-reference-model": (
        ((args(stage="dpo", finetuning_type="full"),), {}),
        ((args(stage="dpo", finetuning_type="lora"),), {}),
    ),
    "quantized-checkpoint-dequantized": (
        ((py("c = Mxfp4Config(dequantize=True)\n"),), {}),
        ((py("c = Mxfp4Config()\n"),), {}),
    ),
    "device-map-in-distributed": (
        ((accel("MULTI_GPU", num_processes=4), py(LOAD + MODEL.format(", device_map='auto'"))), {}),
        ((accel("MULTI_GPU", num_processes=4), py(LOAD + MODEL.format(""))), {}),
    ),
    "bnb8bit-optim-fsdp": (
        ((fsdp(), args(optim="adamw_bnb_8bit")), old(accelerate="0.21.0")),
        ((fsdp(), args(optim="adamw_bnb_8bit")), {}),
    ),
    "unsloth-with-sharding": (((ds(3), args(use_unsloth=True)), {}), ((ds(2), args(use_unsloth=True)), {})),
    "downcast-bf16": (((accel("MULTI_GPU", downcast_bf16=True),), {}), ((accel("MULTI_GPU", downcast_bf16="no"),), {})),
    "ddp-timeout-default": (
        ((args(), py("with a.main_process_first():\n    d = d.map(f)\n")), {}),
        ((args(ddp_timeout=7200), py("with a.main_process_first():\n    d = d.map(f)\n")), {}),
    ),
    "stale-default-config": (((fsdp(),), {"machine": DEFAULT}), ((accel("MULTI_GPU"),), {"machine": DEFAULT})),
    "bf16-needs-ampere": (((args(bf16=True),), V100), ((args(bf16=True),), A100)),
    "tf32-needs-ampere": (((args(tf32=True),), V100), ((args(tf32=True),), A100)),
    "flash-attn-arch": (
        ((args(attn_implementation="flash_attention_2"),), V100),
        ((args(attn_implementation="sdpa"),), V100),
    ),
    "fp8-arch": (
        ((accel("MULTI_GPU", mixed_precision="fp8"),), A100),
        ((accel("MULTI_GPU", mixed_precision="fp8"),), {"cluster": "8xH100"}),
    ),
    "rtx40-p2p-env": (((args(),), {"cluster": "2xRTX4090"}), ((args(),), {"cluster": "2xRTX3090"})),
    "nccl-ib-disabled-multinode": (
        ((fsdp(1, {"num_machines": 2}),), {"machine": IB}),
        ((fsdp(1, {"num_machines": 1}),), {"machine": IB}),
    ),
    "no-nvlink-sharding": (((ds(3),), A10), ((ds(3),), A100)),
    "host-ram-insufficient": (
        ((OFFLOAD,), HOST | {"host_memory": "256GB"}),
        ((OFFLOAD,), HOST | {"host_memory": "4TB"}),
    ),
    "offload-unneeded": (((OFFLOAD,), {"model": "gpt2", **A100}), ((ds(3, BF16),), {"model": "gpt2", **A100})),
    "cpu-adam-build": (((OFFLOAD,), {"machine": BUILD}), ((OFFLOAD,), {"machine": Machine(has_gpu=True)})),
    "aio-missing": (
        ((ds(3, offload_param=NVME),), {"machine": Machine(has_gpu=True, has_libaio=False)}),
        ((ds(3, offload_param=NVME),), {"machine": Machine(has_gpu=True)}),
    ),
    "alloc-conf": (
        ((ds(3, BF16),), L8 | {"cluster": "4xA100-40GB", "micro_batch": 1}),
        ((ds(3, BF16),), {"model": "gpt2", **A100}),
    ),
    "nccl-reserve": (
        ((ds(3, BF16),), L8 | {"cluster": "4xA100-40GB", "micro_batch": 1}),
        ((ds(3, BF16),), {"model": "gpt2", **A100}),
    ),
    "gpu-floor-independent-of-n": (
        ((ds(3, BF16),), L8 | {"cluster": "8xA10", "seq_len": 65536}),
        ((ds(3, BF16),), L8 | A100),
    ),
    "first-step-peak": (
        ((fsdp(2),), L8 | {"cluster": "8xA10", "gpu_memory": "18.5GiB", "seq_len": 128, "optimizer": "adamw"}),
        ((ds(3, BF16),), {"model": "gpt2", **A100}),
    ),
    "does-not-fit": (((ds(1, BF16),), L70 | A100), ((ds(3, BF16),), {"model": "gpt2", **A100})),
}
