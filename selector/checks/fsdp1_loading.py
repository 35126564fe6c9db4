"""Section C, loading, saving, offload and checkpointing under FSDP. Checked against accelerate 1.15."""

from __future__ import annotations

from estimators.units import gib
from estimators.workload import DTYPE_BYTES
from selector.checks.registry import COUNT, ERROR, INFO, RUN, SOURCE, THREAD, WARNING, Hits, rule
from selector.checks.setup import Setup

LARGE = 30 * 10**9  # parameters from which a full state dict is trouble
ADAPTERS = ("lora", "qlora")


@rule(
    "fsdp-bf16-load-no-master",
    WARNING,
    fix="load in fp32, or mixed_precision bf16",
    confirmed=SOURCE,
    source="trl#1224, llama-cookbook#536, blog PR2133; accelerate accelerator.py",
)
def no_master(setup: Setup) -> Hits:
    """Weights loaded in bf16 and no mixed precision: the optimizer runs in bf16. Half the memory, worse accuracy."""
    if not setup.fsdp.is_launcher or setup.precision_at[0] or setup.fields.get("precision") in ("bf16", "fp16"):
        return
    for call in setup.script.named("from_pretrained"):
        dtype = str(call.kwargs.get("dtype", call.kwargs.get("torch_dtype")))
        if dtype.endswith(("bfloat16", "float16")) and setup.method in ("", "full"):
            yield setup.accel.hit("mixed_precision", f"no mixed precision, and line {call.line} loads in {dtype}")


@rule(
    "fsdp-efficient-loading-sync",
    ERROR,
    fix="true in version 1; leave the key out in version 2",
    confirmed=RUN,
    source="transformers PR25107; accelerate utils/launch.py",
    corrected="It fails with fsdp_cpu_ram_efficient_loading absent too: the launcher's default is true.",
)
def efficient_sync(setup: Setup) -> Hits:
    """fsdp_sync_module_states false while fsdp_cpu_ram_efficient_loading is true or absent: ValueError at launch, in
    both versions."""
    sync, loading = setup.fsdp.get("sync_module_states"), setup.fsdp.get("cpu_ram_efficient_loading")
    if setup.fsdp.is_launcher and sync is False and loading is not False:
        said = "true" if loading else "absent (its default is true)"
        key = setup.fsdp.key("sync_module_states")
        edit = setup.fsdp.put("sync_module_states", True) if setup.fsdp.version == 1 else setup.fsdp.block.drop(key)
        yield setup.fsdp.hit(
            "sync_module_states", f"false with {setup.fsdp.key('cpu_ram_efficient_loading')} {said}", edit
        )


@rule(
    "fsdp-efficient-loading-inactive",
    ERROR,
    fix="accelerate launch, or ACCELERATE_USE_FSDP=true before loading",
    confirmed=SOURCE,
    versions="always for scripts; transformers 5.0.0",
    source="ms-swift PR9980, ms-swift PR9982, transformers#43749; transformers modeling_utils.py",
    corrected="With the YAML alone nobody can tell how it is started: reported for transformers 5.0.0 only.",
)
def loading_inactive(setup: Setup) -> Hits:
    """Efficient loading is asked for and does not happen: every rank loads a whole copy on the host."""
    asked = setup.fsdp.flag("cpu_ram_efficient_loading")
    if setup.fsdp and asked and setup.versions["transformers"] == "5.0.0":
        yield setup.fsdp.hit("cpu_ram_efficient_loading", "true, and transformers 5.0.0 does not act on it")


@rule(
    "fsdp-host-load",
    ERROR,
    fix="fsdp_cpu_ram_efficient_loading true",
    confirmed=COUNT,
    source="transformers PR25107, blog PR1412",
)
def host_load(setup: Setup) -> Hits:
    """Without efficient loading each rank holds a whole copy in host RAM, and the node has not got that much."""
    if not setup.fsdp or setup.params is None or setup.host_bytes is None or setup.cluster is None:
        return
    loading = setup.fsdp.flag("cpu_ram_efficient_loading")
    on = setup.fsdp.is_launcher if loading is None else loading
    dtype = setup.estimate.run.settings.load_dtype if setup.estimate else "bf16"
    copies = setup.params * DTYPE_BYTES[dtype] * setup.cluster.gpus_per_node
    if not on and copies > setup.host_bytes:
        yield setup.fsdp.hit(
            "cpu_ram_efficient_loading",
            f"{setup.cluster.gpus_per_node} ranks load {gib(copies, 0)} GiB in "
            f"{dtype}, the host has {gib(setup.host_bytes, 0)}",
            setup.fsdp.put("cpu_ram_efficient_loading", True),
        )


@rule(
    "fsdp-full-state-dict-size",
    WARNING,
    fix="SHARDED_STATE_DICT",
    confirmed=COUNT,
    source="llama-cookbook#142, axolotl PR1828, accelerate#4099",
)
def full_state_dict(setup: Setup) -> Hits:
    """FULL_STATE_DICT of more than 30 B parameters, or of more than rank 0's host holds: out of memory or a time-out
    at save."""
    if not setup.fsdp or setup.fsdp.state_dict != "FULL_STATE_DICT" or setup.params is None or setup.method in ADAPTERS:
        return
    size = 4 * setup.params
    if setup.params > LARGE or (setup.host_bytes is not None and size > setup.host_bytes):
        edit = setup.fsdp.put("state_dict_type", "SHARDED_STATE_DICT")
        yield setup.fsdp.hit(
            "state_dict_type",
            f"FULL_STATE_DICT gathers {gib(size, 0)} GiB on rank 0's host, and two to "
            "three times that with the optimizer",
            edit,
        )


@rule(
    "fsdp-sharded-final-save",
    INFO,
    fix="accelerate merge-weights at the end",
    confirmed=SOURCE,
    source="transformers#30491; accelerate utils/fsdp_utils.py",
)
def sharded_save(setup: Setup) -> Hits:
    """SHARDED_STATE_DICT writes no ordinary checkpoint: merge it at the end."""
    if setup.fsdp and setup.fsdp.text("state_dict_type") in ("SHARDED_STATE_DICT", "3"):
        yield setup.fsdp.hit("state_dict_type", "SHARDED_STATE_DICT has to be merged before others can load it")


@rule(
    "sharded-needs-shared-fs",
    ERROR,
    fix="a shared path",
    confirmed=THREAD,
    source="accelerate#3010",
    corrected="A file does not say whether storage is shared: information.",
)
def shared_storage(setup: Setup) -> Hits:
    """SHARDED_STATE_DICT on several nodes: without shared storage it cannot be loaded again."""
    if setup.fsdp and setup.nodes > 1 and setup.fsdp.state_dict == "SHARDED_STATE_DICT":
        message = f"{setup.nodes} nodes write their shards: the folder has to be shared"
        yield setup.fsdp.hit("state_dict_type", message, severity=INFO)


@rule(
    "fsdp-no-sync-memory",
    WARNING,
    fix="sync_each_batch true",
    confirmed=SOURCE,
    source="accelerate PR2531, open-instruct PR746, pytorch#160320; accelerate accelerator.py",
)
def no_sync_memory(setup: Setup) -> Hits:
    """Accumulation under no_sync, which is accelerate's default, holds whole gradients on each GPU."""
    sync = setup.args.flag("accelerator_config.gradient_accumulation_kwargs.sync_each_batch")
    if setup.fsdp and setup.steps > 1 and not sync and setup.args:
        size = f": {gib(2 * setup.params)} to {gib(4 * setup.params)} GiB" if setup.params else ""
        yield setup.args.hit("gradient_accumulation_steps", f"{setup.steps} micro-steps hold unsharded gradients{size}")


@rule("fsdp-cpu-offload-slow", WARNING, fix="ZeRO with its CPU Adam", confirmed=THREAD, source="pytorch#74588")
def offload_slow(setup: Setup) -> Hits:
    """FSDP's CPU offload steps with an unfused Adam on the host: 3 to 10 times slower."""
    if setup.fsdp and setup.fsdp.offloads:
        name = "offload_params" if setup.fsdp.is_launcher else "cpu_offload"
        yield setup.fsdp.hit(name, "true: the optimizer runs on the CPU, unfused")


@rule(
    "fsdp-ac-duplicate",
    ERROR,
    fix="keep one of them",
    confirmed=SOURCE,
    source="transformers#28499, transformers#34928",
)
def checkpointing_twice(setup: Setup) -> Hits:
    """fsdp_activation_checkpointing and the Trainer's checkpointing are both on: ValueError, or recompute twice."""
    key = setup.args.first("activation_checkpointing", "gradient_checkpointing")
    if setup.fsdp and setup.fsdp.flag("activation_checkpointing") and key and setup.args.flag(key):
        edit = setup.args.put(key, False)
        mild = WARNING if setup.fsdp.owner == "axolotl" else ""
        message = f"true beside {setup.fsdp.key('activation_checkpointing')} true"
        yield setup.args.hit(key, message, edit, severity=mild)


@rule("fsdp-kernel-ac", WARNING, fix="plain SwiGLU", confirmed=THREAD, source="TinyLlama#152, litgpt#805")
def fused_swiglu(setup: Setup) -> Hits:
    """xformers' fused SwiGLU under activation checkpointing: recompute saves another number of tensors."""
    for call in setup.script.named("SwiGLU", "swiglu"):
        if "xformers" in setup.script.imports and setup.checkpoints:
            yield setup.script.hit(call, "", "xformers SwiGLU under activation checkpointing")
