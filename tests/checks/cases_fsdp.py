"""Sections C and D: rule -> (parts, keywords) that fire it, and that do not."""

from __future__ import annotations

from tests.checks.building import accel, args, fsdp, py
from tests.checks.cases_deepspeed import A100, L8, L70, old
from tests.checks.cases_hugging_face import LOAD, MODEL

PLUGIN = "from accelerate import FullyShardedDataParallelPlugin\np = FullyShardedDataParallelPlugin({})\n"
BNB = "from transformers import BitsAndBytesConfig\nc = BitsAndBytesConfig(load_in_4bit=True{})\n"
BF16, FP16 = ", dtype=torch.bfloat16", ", dtype=torch.float16"
STORED = ", bnb_4bit_quant_storage=torch.bfloat16"
LORA = args(finetuning_type="lora")
MESH = "m = init_device_mesh('cuda', {})\nFSDP(model, device_mesh=m, sharding_strategy=ShardingStrategy.HYBRID_SHARD)\n"
OFFLOADED = "init_process_group('{}')\nfully_shard(m, offload_policy=CPUOffloadPolicy())\nclip_grad_norm_(p, 1.0)\n"
PEFT = "model = get_peft_model(model, config{})\n"
TP = {"parallelism_config": {"parallelism_config_tp_size": 2}, "num_processes": 2}

CASES = {
    "fsdp-no-wrap-policy": (((accel("FSDP", fsdp_config={"fsdp_version": 1}),), {}), ((fsdp(),), {})),
    "fsdp-wrap-class": (
        ((fsdp(transformer_layer_cls_to_wrap="LLaMADecoderLayer"),), L8),
        ((fsdp(transformer_layer_cls_to_wrap="LlamaDecoderLayer"),), L8),
    ),
    "fsdp-size-wrap-tied": (
        ((fsdp(auto_wrap_policy="SIZE_BASED_WRAP"),), {"model": "gpt2"}),
        ((fsdp(auto_wrap_policy="SIZE_BASED_WRAP"),), L8),
    ),
    "fsdp-min-num-params-too-small": (
        ((fsdp(auto_wrap_policy="SIZE_BASED_WRAP"),), {}),
        ((fsdp(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=100000000),), {}),
    ),
    "fsdp-noshard-or-1proc": (((fsdp(sharding_strategy=3),), {}), ((fsdp(sharding_strategy=1),), {})),
    "hybrid-needs-wrap-or-mesh": (
        ((fsdp(sharding_strategy="HYBRID_SHARD", auto_wrap_policy="NO_WRAP"),), {}),
        ((fsdp(sharding_strategy="HYBRID_SHARD"),), {}),
    ),
    "hybrid-world-size": (
        ((fsdp(1, {"num_processes": 2}, sharding_strategy="HYBRID_SHARD"),), A100),
        ((fsdp(sharding_strategy="HYBRID_SHARD"),), {"cluster": "2x8xA100"}),
    ),
    "hybrid-shard-dim-1": (
        (
            (py(MESH.format("(4, 1)")),),
            {},
        ),
        (
            (py(MESH.format("(2, 4)")),),
            {},
        ),
    ),
    "hybrid-memory": (
        ((fsdp(sharding_strategy="HYBRID_SHARD"),), L70 | {"cluster": "4x8xA100-80GB"}),
        ((fsdp(),), L70 | {"cluster": "4x8xA100-80GB"}),
    ),
    "fsdp-use-orig-params": (((fsdp(use_orig_params=False), LORA), {}), ((fsdp(use_orig_params=True), LORA), {})),
    "fsdp-mixed-frozen": (((fsdp(use_orig_params=True), LORA), {}), ((fsdp(2), LORA), {})),
    "fsdp-lora-dtype": (
        ((fsdp(use_orig_params=False), py(LOAD + MODEL.format(BF16) + PEFT.format(""))), {}),
        (
            (
                fsdp(use_orig_params=False),
                py(LOAD + MODEL.format(BF16) + PEFT.format(", autocast_adapter_dtype=False")),
            ),
            {},
        ),
    ),
    "fsdp-qlora-dtype": (
        ((fsdp(), py(BNB.format(STORED) + LOAD + MODEL.format(FP16))), {}),
        ((fsdp(), py(BNB.format(STORED) + LOAD + MODEL.format(BF16))), {}),
    ),
    "fsdp-8bit": (((fsdp(), args(load_in_8bit=True)), {}), ((fsdp(), args(load_in_4bit=True)), {})),
    "fsdp-bf16-load-no-master": (
        ((fsdp(1, {"mixed_precision": None}), py(LOAD + MODEL.format(BF16))), {}),
        ((fsdp(), py(LOAD + MODEL.format(BF16))), {}),
    ),
    "fsdp-efficient-loading-sync": (
        ((fsdp(sync_module_states=False),), {}),
        ((fsdp(sync_module_states=False, cpu_ram_efficient_loading=False),), {}),
    ),
    "fsdp-efficient-loading-inactive": (
        ((fsdp(cpu_ram_efficient_loading=True),), old(transformers="5.0.0")),
        ((fsdp(cpu_ram_efficient_loading=True),), {}),
    ),
    "fsdp-host-load": (
        (
            (fsdp(cpu_ram_efficient_loading=False, sync_module_states=False),),
            L70 | {"cluster": "8xA100-80GB", "host_memory": "512GB"},
        ),
        ((fsdp(cpu_ram_efficient_loading=True),), L70 | {"cluster": "8xA100-80GB", "host_memory": "512GB"}),
    ),
    "fsdp-full-state-dict-size": (
        ((fsdp(state_dict_type="FULL_STATE_DICT"),), L70),
        ((fsdp(state_dict_type="FULL_STATE_DICT"),), L8),
    ),
    "fsdp-sharded-final-save": (
        ((fsdp(state_dict_type="SHARDED_STATE_DICT"),), {}),
        ((fsdp(state_dict_type="FULL_STATE_DICT"),), {}),
    ),
    "sharded-needs-shared-fs": (
        ((fsdp(1, {"num_machines": 2}, state_dict_type="SHARDED_STATE_DICT"),), {}),
        ((fsdp(state_dict_type="SHARDED_STATE_DICT"),), {}),
    ),
    "fsdp-no-sync-memory": (
        ((fsdp(), args(gradient_accumulation_steps=4)), {}),
        ((fsdp(), args(gradient_accumulation_steps=1)), {}),
    ),
    "fsdp-cpu-offload-slow": (((fsdp(offload_params=True),), {}), ((fsdp(offload_params=False),), {})),
    "fsdp-ac-duplicate": (
        ((fsdp(activation_checkpointing=True), args(gradient_checkpointing=True)), {}),
        ((fsdp(activation_checkpointing=True), args(gradient_checkpointing=False)), {}),
    ),
    "fsdp-kernel-ac": (
        ((fsdp(activation_checkpointing=True), py("import xformers\nm = xformers.ops.SwiGLU(8, 8)\n")), {}),
        ((fsdp(), py("import xformers\nm = xformers.ops.SwiGLU(8, 8)\n")), {}),
    ),
    "fsdp2-torch-version": (((fsdp(2),), old(torch="2.5.1")), ((fsdp(2),), {})),
    "fsdp2-reshard-type": (
        ((fsdp(2, reshard_after_forward="FULL_SHARD"),), {}),
        ((fsdp(2, reshard_after_forward=True),), {}),
    ),
    "fsdp2-sharding-strategy-ignored": (
        ((fsdp(2, sharding_strategy="SHARD_GRAD_OP"),), {}),
        ((fsdp(2, sharding_strategy="SHARD_GRAD_OP", reshard_after_forward=False),), {}),
    ),
    "accel-parallelism-config-v1": (
        ((fsdp(1, {"parallelism_config": {"parallelism_config_dp_shard_size": 2}}),), {}),
        ((fsdp(2, {"parallelism_config": {"parallelism_config_dp_shard_size": 2}}),), {}),
    ),
    "fsdp2-legacy-keys": (
        ((fsdp(2, backward_prefetch="BACKWARD_PRE"),), {}),
        ((fsdp(1, backward_prefetch="BACKWARD_PRE"),), {}),
    ),
    "fsdp2-forward-prefetch": (
        ((py(PLUGIN.format("fsdp_version=2, forward_prefetch=False")),), {}),
        ((py(PLUGIN.format("fsdp_version=1, forward_prefetch=False")),), {}),
    ),
    "fsdp2-local-state-dict": (
        ((fsdp(2, state_dict_type="LOCAL_STATE_DICT"),), {}),
        ((fsdp(1, state_dict_type="LOCAL_STATE_DICT"),), {}),
    ),
    "fsdp-version-default": (((fsdp(None),), {}), ((fsdp(2),), {})),
    "fsdp-qlora-quant-storage": (((fsdp(2), py(BNB.format(""))), {}), ((fsdp(2), py(BNB.format(STORED))), {})),
    "fsdp2-upcast-frozen": (((fsdp(2), LORA), old(accelerate="1.10.1")), ((fsdp(2), LORA), {})),
    "fsdp2-no-shard-dim": (((fsdp(2, TP),), {}), ((fsdp(2, TP | {"num_processes": 4}),), {})),
    "fsdp2-prepare-together": (
        ((fsdp(2), py("model = accelerator.prepare(model)\nopt = accelerator.prepare(opt)\n")), {}),
        ((fsdp(2), py("model, opt = accelerator.prepare(model, opt)\n")), {}),
    ),
    "fsdp2-offload-gloo": (
        (
            (py(OFFLOADED.format("nccl")),),
            {},
        ),
        (
            (py(OFFLOADED.format("cpu:gloo,cuda:nccl")),),
            {},
        ),
    ),
    "fused-adamw-cpu-offload": (
        ((fsdp(offload_params=True), args(optim="adamw_torch_fused")), {}),
        ((fsdp(), args(optim="adamw_torch_fused")), {}),
    ),
    "fsdp2-tied-embeddings": (
        ((fsdp(2),), {"model": "gpt2"} | old(accelerate="1.12.0")),
        ((fsdp(2),), {"model": "gpt2"}),
    ),
    "fsdp2-no-sync-api": (
        ((py("fully_shard(model)\nwith model.no_sync():\n    pass\n"),), {}),
        ((py("fully_shard(model)\nmodel.set_requires_gradient_sync(False)\n"),), {}),
    ),
    "fsdp2-rank0-gpu-load": (
        ((fsdp(2), py(LOAD + MODEL.format(", device_map='cuda:0'"))), L70 | A100),
        ((fsdp(2), py(LOAD + MODEL.format(""))), L70 | A100),
    ),
    "torchao-fp8-fsdp2": (
        ((fsdp(2, {"mixed_precision": "fp8", "fp8_config": {"backend": "AO"}}),), {}),
        ((fsdp(2, {"mixed_precision": "fp8", "fp8_config": {"backend": "AO"}}, cpu_ram_efficient_loading=False),), {}),
    ),
}
