"""Section D, rules about the training loop and loading under FSDP2. Checked against accelerate 1.15."""

from __future__ import annotations

from estimators.units import gib
from selector.checks.registry import COUNT, ERROR, RUN, SOURCE, THREAD, WARNING, Hits, rule
from selector.checks.setup import Setup


@rule(
    "fsdp2-prepare-together",
    ERROR,
    fix="prepare model and optimizer in one call",
    confirmed=SOURCE,
    source="accelerate accelerator.py",
)
def prepare_apart(setup: Setup) -> Hits:
    """Version 2 and an optimizer that is prepared without its model: ValueError."""
    calls = [c for c in setup.script.named("prepare") if c.path.startswith("accel")]
    alone = [c for c in calls if len(c.args) == 1 and not c.kwargs]
    if setup.fsdp.version == 2 and len(alone) > 1 and len(alone) == len(calls):
        yield setup.script.hit(alone[1], "", f"lines {alone[0].line} and {alone[1].line} prepare one object each")


@rule(
    "fsdp2-offload-gloo",
    ERROR,
    fix="backend cpu:gloo,cuda:nccl",
    confirmed=SOURCE,
    source="axolotl#3058",
    corrected="The Trainer and accelerate start that pair of backends themselves; only a loop of one's own fails.",
)
def offload_gloo(setup: Setup) -> Hits:
    """CPU offload in version 2 and clipping over a group that has nccl alone: no backend for the CPU."""
    clips = any(setup.script.named("clip_grad_norm_", "get_total_norm"))
    offloads = any(setup.script.named("CPUOffloadPolicy"))
    for call in setup.script.named("init_process_group"):
        backend = call.args[0] if call.args else call.kwargs.get("backend")
        if clips and offloads and backend == "nccl":
            yield setup.script.hit(call, "backend", "'nccl' alone, and offloaded gradients are clipped on the CPU")


@rule(
    "fused-adamw-cpu-offload",
    ERROR,
    fix="adamw_torch",
    confirmed=THREAD,
    source="prime-rl PR3305, TorchSpec PR151",
    corrected="torch 2.13 steps fused AdamW on CPU parameters: a warning from torch 2.4.",
)
def fused_offload(setup: Setup) -> Hits:
    """adamw_torch_fused with parameters that FSDP offloads to the CPU: error or leak."""
    key = setup.args.first("optim", "optimizer")
    if setup.fsdp.offloads and key and setup.args.word(key) == "adamw_torch_fused":
        severity = ERROR if setup.older("torch", "2.4") else WARNING
        yield setup.args.hit(
            key, "adamw_torch_fused with parameters on the CPU", setup.args.put(key, "adamw_torch"), severity=severity
        )


@rule(
    "fsdp2-tied-embeddings",
    ERROR,
    fix="accelerate 1.15",
    confirmed=THREAD,
    versions="accelerate < 1.15",
    source="accelerate PR4171, accelerate#3870, ezpz#237",
    corrected="Works in accelerate 1.15.0.",
)
def tied(setup: Setup) -> Hits:
    """Version 2 with tied embeddings on an accelerate before 1.15: KeyError lm_head or ValueError in forward."""
    affected = setup.older("accelerate", "1.15") and not setup.older("accelerate", "1.12")
    if setup.fsdp.version == 2 and setup.model and setup.model.tied and affected:
        yield setup.fsdp.hit(
            "version", f"{setup.model.name} ties its embeddings, accelerate is {setup.versions['accelerate']}"
        )


@rule(
    "fsdp2-no-sync-api",
    WARNING,
    fix="set_requires_gradient_sync",
    confirmed=RUN,
    source="cosmos-framework#161, torchtitan PR1710",
)
def no_sync_api(setup: Setup) -> Hits:
    """fully_shard with DDP's no_sync in the loop: fully_shard modules have none."""
    if any(setup.script.named("fully_shard")):
        for call in setup.script.named("no_sync"):
            if not call.path.startswith("accelerator"):
                yield setup.script.hit(call, "", f"{call.path}() beside fully_shard")


@rule(
    "fsdp2-rank0-gpu-load",
    WARNING,
    fix="load on the CPU or on meta",
    confirmed=COUNT,
    source="SkyRL#1419, accelerate PR3482",
)
def rank0_load(setup: Setup) -> Hits:
    """Rank 0 loads the whole model to its GPU before it broadcasts, and that is more than the GPU."""
    on_gpu = [c for c in setup.script.named("from_pretrained") if str(c.kwargs.get("device_map")).startswith("cuda")]
    if setup.fsdp.version == 2 and setup.params and setup.gpu_bytes and on_gpu and 2 * setup.params > setup.gpu_bytes:
        yield setup.script.hit(
            on_gpu[0],
            "device_map",
            f"{gib(2 * setup.params)} GiB of weights go to one GPU of {gib(setup.gpu_bytes)} GiB",
        )


@rule(
    "torchao-fp8-fsdp2",
    ERROR,
    fix="fsdp_cpu_ram_efficient_loading false",
    confirmed=SOURCE,
    source="accelerate accelerator.py",
)
def torchao(setup: Setup) -> Hits:
    """fp8 by torchao with FSDP and efficient loading: ValueError."""
    loading = setup.fsdp.flag("cpu_ram_efficient_loading") is not False
    if setup.accel.word("fp8_config.backend") in ("ao", "torchao") and setup.fsdp.version == 2 and loading:
        edit = setup.fsdp.put("cpu_ram_efficient_loading", False)
        yield setup.accel.hit("fp8_config.backend", "AO with fsdp_cpu_ram_efficient_loading true", edit)
