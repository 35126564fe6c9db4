"""Section C, FSDP version 1 of accelerate and the Trainer. Checked against accelerate 1.15 and torch 2.13."""

from __future__ import annotations

from estimators.units import gib
from selector.checks.registry import COUNT, ERROR, RUN, SOURCE, THREAD, WARNING, Hits, rule
from selector.checks.setup import Setup

SMALLEST_UNIT = 10**6  # parameters of a size-based unit
HYBRID = ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2")


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
        yield setup.fsdp.hit(
            "auto_wrap_policy",
            f"{'is NO_WRAP' if said else 'is absent'}, so the model is one unit{size}",
            setup.fsdp.put("auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),
            severity=WARNING if setup.fsdp.version == 2 or not setup.fsdp.block else "",
        )


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
        yield setup.fsdp.hit(
            "transformer_layer_cls_to_wrap",
            f"{', '.join(wrong)[:80]} is not in {setup.model.name}, whose blocks are {', '.join(known)}",
            edit,
            fix=f"write {', '.join(known)}",
        )


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
        yield (
            setup.accel.hit("num_processes", "FSDP on one GPU saves nothing")
            if setup.accel
            else setup.fsdp.hit("version", "FSDP on one GPU saves nothing")
        )


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
        yield setup.fsdp.hit(
            "sharding_strategy",
            "one node has nothing to replicate over: FULL_SHARD by another name",
            edit,
            severity=WARNING,
        )


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
        yield setup.fsdp.hit(
            name,
            f"16 B x {setup.params / 1e9:.1f} B / {shard} = {gib(each)} GiB of states on a GPU of "
            f"{gib(setup.cluster.gpu.memory_bytes)} GiB",
        )
