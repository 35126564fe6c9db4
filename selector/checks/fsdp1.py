"""Section C, FSDP version 1 of accelerate and the Trainer. Checked against accelerate 1.15 and torch 2.13."""

from __future__ import annotations

from estimators.units import gib
from estimators.workload import DTYPE_BYTES
from selector.checks.registry import COUNT, ERROR, INFO, RUN, SOURCE, THREAD, WARNING, Hits, rule
from selector.checks.setup import Setup

SMALLEST_UNIT = 10**6  # parameters of a size-based unit
LARGE = 30 * 10**9  # parameters from which a full state dict is trouble
HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
ADAPTERS = ("lora", "qlora")


def quant_storage(setup: Setup) -> str:
    """bnb_4bit_quant_storage: the dtype's name without torch., or empty where nothing says."""
    value = setup.args.get("bnb_4bit_quant_storage")
    for call in setup.script.named("BitsAndBytesConfig"):
        value = call.kwargs.get("bnb_4bit_quant_storage", value)
    return value.removeprefix("torch.") if isinstance(value, str) else ""


@rule(
    "fsdp-no-wrap-policy",
    ERROR,
    fix="TRANSFORMER_BASED_WRAP",
    confirmed=RUN,
    source="accelerate#570, pytorch#150096, Lightning#19721",
    corrected="FSDP2 has the same default, and the same single unit; it runs, so a warning there.",
)
def no_wrap_policy(setup: Setup) -> Hits:
    """No fsdp_auto_wrap_policy, whose default is NO_WRAP: one unit, and the whole model is gathered at once."""
    shards = setup.fsdp.version == 2 or setup.fsdp.sharding != "NO_SHARD"
    if setup.fsdp.is_launcher and shards and setup.fsdp.wrapping == "NO_WRAP":
        said = "auto_wrap_policy" in setup.fsdp.block.data or "fsdp_auto_wrap_policy" in setup.fsdp.block.data
        size = f": {gib(2 * setup.params)} to {gib(4 * setup.params)} GiB gathered at once" if setup.params else ""
        yield setup.fsdp.hit("auto_wrap_policy", f"{'is NO_WRAP' if said else 'is absent'}, so the model is one unit{size}",
                             setup.fsdp.put("auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),
                             severity=WARNING if setup.fsdp.version == 2 else "")  # fmt: skip


@rule(
    "fsdp-wrap-class",
    ERROR,
    fix="a class of the loaded model",
    confirmed=RUN,
    source="stanford_alpaca#58, stanford_alpaca#224, LLaMA-Factory#8279, transformers#37672, BCEmbedding#66",
)
def wrap_class(setup: Setup) -> Hits:
    """A class to wrap that the model does not have: exception. Names are case sensitive."""
    if not setup.fsdp or setup.model is None or setup.fsdp.wrapping != "TRANSFORMER_BASED_WRAP":
        return
    known = sorted({part.class_name for part in setup.model.blocks})
    wrong = [name for name in setup.fsdp.classes if name not in known]
    other = {"Embedding", "Linear"}  # classes of torch that people wrap beside the blocks
    if known and wrong and not set(wrong) <= other:
        edit = setup.fsdp.put("transformer_layer_cls_to_wrap", ",".join(known))
        yield setup.fsdp.hit("transformer_layer_cls_to_wrap", f"{', '.join(wrong)[:80]} is not in {setup.model.name}, "
                             f"whose blocks are {', '.join(known)}", edit, fix=f"write {', '.join(known)}")  # fmt: skip


@rule("fsdp-size-wrap-tied", ERROR, fix="TRANSFORMER_BASED_WRAP", confirmed=THREAD, source="accelerate#570")
def size_wrap_tied(setup: Setup) -> Hits:
    """SIZE_BASED_WRAP splits tied embeddings into two units: error in forward."""
    if setup.fsdp.version == 1 and setup.fsdp.wrapping == "SIZE_BASED_WRAP" and setup.model and setup.model.tied:
        edit = setup.fsdp.put("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
        yield setup.fsdp.hit("auto_wrap_policy", f"SIZE_BASED_WRAP, and {setup.model.name} ties its embeddings", edit)


@rule(
    "fsdp-min-num-params-too-small",
    WARNING,
    fix="1e8, or TRANSFORMER_BASED_WRAP",
    confirmed=SOURCE,
    source="Lightning#15976, transformers#28499; accelerate utils/dataclasses.py",
)
def small_units(setup: Setup) -> Hits:
    """SIZE_BASED_WRAP with fewer than 1e6 parameters a unit (0 where nothing is said): slow, and more memory."""
    if not setup.fsdp or setup.fsdp.wrapping != "SIZE_BASED_WRAP":
        return
    least = setup.fsdp.block.number(setup.fsdp.key("min_num_params")) or 0
    if least < SMALLEST_UNIT:
        edit = setup.fsdp.put("min_num_params", 100_000_000)
        yield setup.fsdp.hit("min_num_params", f"{least:,.0f} parameters make tiny units", edit)


@rule(
    "fsdp-noshard-or-1proc", WARNING, fix="FULL_SHARD on several GPUs, or DDP", confirmed=COUNT, source="BCEmbedding#66"
)
def no_shard(setup: Setup) -> Hits:
    """NO_SHARD, or FSDP on one process: nothing is saved."""
    if setup.fsdp.version == 1 and setup.fsdp.sharding == "NO_SHARD":
        edit = setup.fsdp.put("sharding_strategy", "FULL_SHARD")
        yield setup.fsdp.hit("sharding_strategy", "NO_SHARD keeps everything whole", edit)
    elif setup.fsdp and setup.world == 1 and not setup.fsdp.offloads:
        yield setup.accel.hit("num_processes", "FSDP on one GPU saves nothing") if setup.accel else setup.fsdp.hit(
            "version", "FSDP on one GPU saves nothing")  # fmt: skip


@rule(
    "hybrid-needs-wrap-or-mesh",
    ERROR,
    fix="a wrap policy, or a 2-D mesh",
    confirmed=SOURCE,
    source="accelerate#2671, RLinf#1502; torch distributed/fsdp",
)
def hybrid_unwrapped(setup: Setup) -> Hits:
    """HYBRID_SHARD without a wrap policy and without a mesh: ValueError."""
    if setup.fsdp.version == 1 and setup.fsdp.sharding in HYBRID and setup.fsdp.wrapping == "NO_WRAP":
        edit = setup.fsdp.put("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
        yield setup.fsdp.hit("sharding_strategy", f"{setup.fsdp.sharding} without a wrap policy", edit)


@rule(
    "hybrid-world-size",
    ERROR,
    fix="FULL_SHARD",
    confirmed=SOURCE,
    source="instructlab#678",
    corrected="One whole node works and shards like FULL_SHARD: a warning there.",
)
def hybrid_world(setup: Setup) -> Hits:
    """HYBRID_SHARD with fewer processes than the node has GPUs (group larger than the world), or on one node."""
    if setup.fsdp.version != 1 or setup.fsdp.sharding not in HYBRID or not setup.world:
        return
    edit = setup.fsdp.put("sharding_strategy", "FULL_SHARD")
    started = setup.accel.whole("num_processes")
    node = setup.cluster.gpus_per_node if setup.cluster else None
    if node and started and started < node:
        yield setup.fsdp.hit("sharding_strategy", f"the shard group is {node} GPUs and {started} processes start", edit)
    elif setup.nodes == 1:
        yield setup.fsdp.hit("sharding_strategy", "one node has nothing to replicate over: FULL_SHARD by another name",
                             edit, severity=WARNING)  # fmt: skip


@rule("hybrid-shard-dim-1", ERROR, fix="a proper mesh, or DDP", confirmed=THREAD, source="pytorch#154888")
def hybrid_dim(setup: Setup) -> Hits:
    """A mesh (n, 1) for hybrid sharding: gradients are silently not reduced."""
    for call in setup.script.named("init_device_mesh"):
        shape = call.args[1] if len(call.args) > 1 else call.kwargs.get("mesh_shape")
        hybrid = any("HYBRID_SHARD" in str(c.kwargs.get("sharding_strategy")) for c in setup.script.calls)
        if isinstance(shape, list) and len(shape) == 2 and shape[1] == 1 and hybrid:
            yield setup.script.hit(call, "", f"mesh {tuple(shape)} with HYBRID_SHARD")


@rule("hybrid-memory", ERROR, fix="FULL_SHARD, or a larger shard group", confirmed=COUNT, source="LLaMA-Factory#6372")
def hybrid_memory(setup: Setup) -> Hits:
    """HYBRID_SHARD holds 16 B x parameters / GPUs of a node, and that is more than the GPU."""
    if setup.params is None or setup.cluster is None or setup.method not in ("", "full") or setup.fsdp.offloads:
        return
    replicated = setup.accel.whole("parallelism_config.parallelism_config_dp_replicate_size") or 1
    hybrid = setup.fsdp.version == 1 and setup.fsdp.sharding in HYBRID
    if not setup.fsdp or not (hybrid or replicated > 1):
        return
    shard = setup.cluster.gpus_per_node if hybrid else max(setup.cluster.ranks // replicated, 1)
    precision = setup.fields.get("precision", "")
    each = 16 * setup.params / shard
    if each > setup.cluster.gpu.memory_bytes and precision not in ("bf16", "fp16"):
        name = "sharding_strategy" if hybrid else "version"
        yield setup.fsdp.hit(name, f"16 B x {setup.params / 1e9:.1f} B / {shard} = {gib(each)} GiB of states on a GPU of "
                                   f"{gib(setup.cluster.gpu.memory_bytes)} GiB")  # fmt: skip


@rule(
    "fsdp-use-orig-params",
    ERROR,
    fix="true",
    confirmed=RUN,
    source="llm-foundry#414, flan-alpaca#10",
    corrected="Only units that mix frozen and trained parameters fail; accelerate gives PEFT models a policy that "
    "separates them (fsdp_auto_wrap_policy), and then false works: a warning under the Trainer.",
)
def orig_params(setup: Setup) -> Hits:
    """Frozen parameters (PEFT) with use_orig_params false: a unit must have one requires_grad."""
    if (
        setup.fsdp.version == 1
        and setup.fsdp.flag("use_orig_params") is False
        and setup.method in (*ADAPTERS, "freeze")
    ):
        mends = setup.hf and setup.method in ADAPTERS
        yield setup.fsdp.hit("use_orig_params", f"false with {setup.method}", setup.fsdp.put("use_orig_params", True),
                             severity=WARNING if mends else ERROR)  # fmt: skip


@rule(
    "fsdp-mixed-frozen",
    WARNING,
    fix="PEFT's wrap policy, or fsdp_version 2",
    confirmed=THREAD,
    source="litgpt#1417, litgpt PR1538",
)
def mixed_frozen(setup: Setup) -> Hits:
    """FSDP1 with adapters inside units of whole blocks and use_orig_params true: gradients of the whole block are
    allocated, not of the adapters alone."""
    keeps = setup.fsdp.flag("use_orig_params") is True
    if (
        setup.fsdp.version == 1
        and setup.method in ADAPTERS
        and keeps
        and setup.fsdp.wrapping == "TRANSFORMER_BASED_WRAP"
    ):
        yield setup.fsdp.hit("use_orig_params", f"true with {setup.method}: units mix frozen and trained parameters")


@rule(
    "fsdp-lora-dtype",
    ERROR,
    fix="autocast_adapter_dtype=False, or units of their own",
    confirmed=THREAD,
    source="trl#1723, LLaMA-Factory PR10157",
)
def lora_dtype(setup: Setup) -> Hits:
    """A base in bf16 and adapters in fp32 inside one unit of FSDP1: a unit has one dtype."""
    loaded = next((str(c.kwargs[k]) for c in setup.script.named("from_pretrained") for k in ("dtype", "torch_dtype")
                   if k in c.kwargs), "")  # fmt: skip
    wraps = [c for c in setup.script.named("get_peft_model")]
    explicit = any(c.kwargs.get("autocast_adapter_dtype") is False for c in wraps)
    if setup.fsdp.version == 1 and setup.fsdp.flag("use_orig_params") is False and wraps and not explicit and loaded.endswith(
            ("bfloat16", "float16")):  # fmt: skip
        yield setup.script.hit(wraps[0], "", f"the base is {loaded} and adapters are fp32 in the same unit")


@rule("fsdp-qlora-dtype", ERROR, fix="all bf16", confirmed=THREAD, source="axolotl#1494, LLaMA-Factory#3853, peft#1432")
def qlora_dtype(setup: Setup) -> Hits:
    """4-bit storage in another dtype than the other modules: a unit has one dtype."""
    loaded = next((str(c.kwargs[k]) for c in setup.script.named("from_pretrained") for k in ("dtype", "torch_dtype")
                   if k in c.kwargs), "") or str(setup.args.get("torch_dtype") or "")  # fmt: skip
    storage, dtype = quant_storage(setup), loaded.removeprefix("torch.")
    if (
        setup.fsdp.version == 1
        and setup.bits == 4
        and storage
        and dtype in ("bfloat16", "float16", "float32")
        and storage != dtype
    ):
        yield setup.fsdp.hit("version", f"bnb_4bit_quant_storage {storage} beside modules in {dtype}")


@rule(
    "fsdp-8bit",
    ERROR,
    fix="4-bit, or bf16",
    confirmed=THREAD,
    source="bitsandbytes#1709, llama-cookbook#945, llama-cookbook#240; torch distributed/fsdp/_flat_param.py",
    corrected="FSDP2 leaves integers out of sharding: a warning there.",
)
def eight_bit(setup: Setup) -> Hits:
    """A base in 8 bit or another integer format under FSDP1: integers cannot be flattened."""
    if setup.fsdp and setup.bits == 8:
        first = setup.fsdp.version == 1
        says = "cannot be flattened" if first else "is not sharded: 1 B a parameter on every GPU"
        yield setup.fsdp.hit("version", f"a base model in 8 bit {says}", severity="" if first else WARNING)


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
        edit = setup.fsdp.put("sync_module_states", True)
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
        yield setup.fsdp.hit("cpu_ram_efficient_loading", f"{setup.cluster.gpus_per_node} ranks load {gib(copies, 0)} GiB in "
                             f"{dtype}, the host has {gib(setup.host_bytes, 0)}",
                             setup.fsdp.put("cpu_ram_efficient_loading", True))  # fmt: skip


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
        yield setup.fsdp.hit("state_dict_type", f"FULL_STATE_DICT gathers {gib(size, 0)} GiB on rank 0's host, and two to "
                             "three times that with the optimizer", edit)  # fmt: skip


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
    "fsdp-ac-duplicate", ERROR, fix="keep one of them", confirmed=RUN, source="transformers#28499, transformers#34928"
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
