"""Section A: rule -> (parts, keywords) that fire it, and that do not."""

from __future__ import annotations

from selector.checks.machine import Machine
from tests.checks.building import args, ds, py, raw

BF16 = {"bf16": {"enabled": True}}
CPU, NVME = {"device": "cpu"}, {"device": "nvme", "nvme_path": "/local_nvme"}
L8, L70 = {"model": "llama-8b"}, {"model": "llama-70b"}
A100 = {"cluster": "8xA100-80GB"}
NATIVE = {"stack": "deepspeed"}
INITIALIZE = "import deepspeed\nengine = deepspeed.initialize(model=model, optimizer=opt)\n"
TRIANGLE = {"train_batch_size": 256, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 18}
GATHER = "stage3_gather_16bit_weights_on_model_save"


def old(**versions: str) -> dict[str, object]:
    return {"versions": tuple(versions.items())}


CASES = {
    "ds-batch-triangle": (
        ((ds(1, TRIANGLE),), {"cluster": "7xA100"}),
        ((ds(1, TRIANGLE | {"train_batch_size": 252}),), {"cluster": "7xA100"}),
    ),
    "ds-batch-none": (
        ((raw({"zero_optimization": {"stage": 1}, "gradient_accumulation_steps": 2}),), {}),
        ((raw({"zero_optimization": {"stage": 1}}), args()), {}),
    ),
    "ds-batch-ok-but-world1": (
        (
            (ds(1, {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}),),
            {"cluster": "4xA100"},
        ),
        ((ds(1),), A100),
    ),
    "ds-fp16-bf16-both": (
        ((ds(1, BF16 | {"fp16": {"enabled": True}}),), {}),
        ((ds(1, BF16 | {"fp16": {"enabled": False}}),), {}),
    ),
    "ds-bool-as-string": (((ds(1, {"bf16": {"enabled": "true"}}),), {}), ((ds(1, {"bf16": {"enabled": "auto"}}),), {})),
    "ds-legacy-bfloat16-key": (((ds(1, {"bfloat16": {"enabled": True}}),), {}), ((ds(1, BF16),), {})),
    "ds-auto-without-hf": (
        ((ds(1, {"gradient_clipping": "auto"}),), NATIVE),
        ((ds(1, {"gradient_clipping": "auto"}), args()), {}),
    ),
    "ds-auto-hidden-size": (
        ((ds(3, reduce_bucket_size="auto"),), {"model": {"no": "hidden"}}),
        ((ds(3, reduce_bucket_size="auto"),), L8 | A100),
    ),
    "ds-auto-bucket-stage2": (
        ((ds(2, reduce_bucket_size="auto"),), old(transformers="4.17.0")),
        ((ds(2, reduce_bucket_size="auto"),), {}),
    ),
    "ds-bf16-stage0": (
        ((ds(0, BF16 | {"gradient_accumulation_steps": 4}),), old(deepspeed="0.13.0")),
        ((ds(1, BF16 | {"gradient_accumulation_steps": 4}),), old(deepspeed="0.13.0")),
    ),
    "bf16-grad-accum": (
        ((ds(2, BF16 | {"gradient_accumulation_steps": 4}),), {}),
        ((ds(2, BF16 | {"gradient_accumulation_steps": 4, "data_types": {"grad_accum_dtype": "fp32"}}),), {}),
    ),
    "ds-bf16-master-flags": (
        ((ds(1, {"bf16": {"enabled": True, "bf16_optimizer_states": True}}),), {}),
        (
            (ds(1, {"bf16": {"enabled": True, "bf16_optimizer_states": True, "bf16_master_weights_and_grads": True}}),),
            {},
        ),
    ),
    "ds-amp-with-zero": (
        ((ds(1, {"amp": {"enabled": True}}),), {}),
        ((ds(0, {"amp": {"enabled": True}}),), old(deepspeed="0.14.0")),
    ),
    "onebit-with-zero": (
        ((ds(1, {"optimizer": {"type": "OneBitAdam"}}),), {}),
        ((ds(1, {"optimizer": {"type": "AdamW"}}),), {}),
    ),
    "ds-untested-optimizer": (
        ((ds(1, {"optimizer": {"type": "SGD"}}),), {}),
        ((ds(1, {"optimizer": {"type": "SGD"}, "zero_allow_untested_optimizer": True}),), {}),
    ),
    "ds-unknown-key": (((ds(2, reduce_buket_size=5e7),), {}), ((ds(2, reduce_bucket_size=5e7),), {})),
    "offload-param-needs-stage3": (((ds(2, offload_param=CPU),), {}), ((ds(3, offload_param=CPU),), {})),
    "offload-needs-zero": (((ds(0, offload_optimizer=CPU),), {}), ((ds(1, offload_optimizer=CPU),), {})),
    "ds-offload-object": (((ds(2, offload_optimizer=True),), {}), ((ds(2, offload_optimizer=CPU),), {})),
    "ds-deprecated-cpu-offload": (((ds(2, cpu_offload=True),), {}), ((ds(2, offload_optimizer=CPU),), {})),
    "ds-gather-16bit-alias": (((ds(3, **{GATHER: True, GATHER[7:]: True}),), {}), ((ds(3, **{GATHER[7:]: True}),), {})),
    "zero3-gather-on-save": (((ds(3),), {}), ((ds(3, **{GATHER: True}),), {})),
    "zero-world-size-1": (((ds(2),), {"cluster": "1xA100"}), ((ds(2, offload_optimizer=CPU),), {"cluster": "1xA100"})),
    "ds-replicated-part-exceeds-gpu": (
        ((ds(2),), L70 | A100 | {"method": "full"}),
        ((ds(3),), L70 | A100 | {"method": "full"}),
    ),
    "bucket-larger-than-model": (((ds(2),), {"model": "gpt2"} | A100), ((ds(2),), L8 | A100)),
    "overlap-comm-buffer": (((ds(2, overlap_comm=True),), {}), ((ds(2),), {})),
    "tiny-bucket-overlap": (
        ((ds(2, overlap_comm=True, reduce_bucket_size=50_000),), {}),
        ((ds(2, overlap_comm=True, reduce_bucket_size=5e7),), {}),
    ),
    "stage3-live-params": (
        ((ds(3, stage3_max_live_parameters=3e9),), L8 | {"cluster": "8xA10"}),
        ((ds(3, stage3_max_live_parameters=1e8),), L8 | A100),
    ),
    "ds-offload-client-optimizer": (
        ((ds(2, offload_optimizer=CPU), py(INITIALIZE)), {}),
        ((ds(2, {"zero_force_ds_cpu_optimizer": False}, offload_optimizer=CPU), py(INITIALIZE)), {}),
    ),
    "offload-ratio-stage": (
        ((ds(2, offload_optimizer=CPU | {"ratio": 0.5}),), {}),
        ((ds(3, offload_optimizer=CPU | {"ratio": 0.5}),), {}),
    ),
    "nvme-needs-path-aio": (
        ((ds(3, offload_optimizer={"device": "nvme"}),), {}),
        ((ds(3, {"aio": {"block_size": 1048576}}, offload_optimizer=NVME),), {}),
    ),
    "nvme-buffer-size": (
        ((ds(3, offload_param=NVME | {"buffer_size": 1000}),), L8 | A100),
        ((ds(3, offload_param=NVME | {"buffer_size": 6e8}),), L8 | A100),
    ),
    "nvme-misplaced-keys": (
        ((ds(3, offload_optimizer=NVME | {"buffer_size": 1e8}),), {}),
        ((ds(3, offload_param=NVME | {"buffer_size": 1e8}),), {}),
    ),
    "nvme-disk-space": (
        ((ds(3, offload_optimizer=NVME),), L70 | {"cluster": "8xA100", "nvme": "100GB"}),
        ((ds(3, offload_optimizer=NVME),), L70 | {"cluster": "8xA100", "nvme": "4TB"}),
    ),
    "pin-memory-host": (
        ((ds(3, BF16, offload_optimizer=CPU),), L8 | {"cluster": "8xA100", "host_memory": "256GB"}),
        (
            (ds(3, BF16, offload_optimizer=CPU | {"pin_memory": False}),),
            L8 | {"cluster": "8xA100", "host_memory": "256GB"},
        ),
    ),
    "pin-memory-wsl2": (
        ((ds(2, offload_optimizer=CPU | {"pin_memory": True}),), {"machine": Machine(wsl=True)}),
        ((ds(2, offload_optimizer=CPU | {"pin_memory": True}),), {}),
    ),
    "hpz-with-offload": (
        ((ds(3, zero_hpz_partition_size=8, offload_param=CPU),), {}),
        ((ds(3, zero_hpz_partition_size=8),), {}),
    ),
    "hpz-memory": (((ds(3, zero_hpz_partition_size=8),), L8 | A100), ((ds(3),), L8 | A100)),
    "zero3-multinode-slow": (
        ((ds(3),), L70 | {"cluster": "2x8xA100", "network": "10"}),
        ((ds(3),), L70 | {"cluster": "2x8xA100", "network": "100"}),
    ),
    "zero3-moe-leaf": (
        ((ds(3),), {"model": "mixtral-8x7b", **A100} | old(transformers="4.40.0", deepspeed="0.12.0")),
        ((ds(3),), {"model": "mixtral-8x7b", **A100}),
    ),
    "native-moe-zero3": (
        ((ds(3), py("import deepspeed\nlayer = deepspeed.moe.layer.MoE(hidden_size=8)\n")), {}),
        ((ds(2), py("import deepspeed\nlayer = deepspeed.moe.layer.MoE(hidden_size=8)\n")), {}),
    ),
    "elastic-ckpt-zero3": (((ds(3, elastic_checkpoint=True),), {}), ((ds(2, elastic_checkpoint=True),), {})),
    "zero3-torch-compile": (
        ((ds(3), args(torch_compile=True)), old(deepspeed="0.13.0")),
        ((ds(3), args(torch_compile=True)), {}),
    ),
    "zero-no-sync": (
        ((ds(2), py("with engine.no_sync():\n    pass\n")), {}),
        ((ds(1), py("with engine.no_sync():\n    pass\n")), {}),
    ),
}
