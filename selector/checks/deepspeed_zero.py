"""Section A, rules of ZeRO: stages, buckets, sharding groups, saving. Checked against deepspeed 0.19.8."""

from __future__ import annotations

from estimators.units import gib
from selector.checks.deepspeed_words import BUILT_IN_LEAVES
from selector.checks.registry import COUNT, ERROR, RUN, SOURCE, THREAD, WARNING, Hits, rule
from selector.checks.setup import Setup

HALF = 2  # bytes of a 16-bit element
SLOW_NETWORK = 200e9  # bit/s of a node
_SAVES = (
    "stage3_gather_16bit_weights_on_model_save",
    "gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
)


@rule(
    "ds-gather-16bit-alias",
    ERROR,
    fix="keep one spelling",
    confirmed=RUN,
    source="axolotl PR2956; DeepSpeed runtime/zero/config.py",
    corrected="Both spellings together are an error in DeepSpeed 0.19.8; either alone is accepted.",
)
def gather_alias(setup: Setup) -> Hits:
    """Both spellings of gather-16-bit-weights-on-save stand in the file: extra inputs are not permitted."""
    present = [key for key in _SAVES[:2] if key in setup.zero.data]
    if len(present) == 2:
        yield setup.zero.hit(present[1], f"is another spelling of {present[0]}", setup.zero.drop(present[1]))


@rule(
    "zero3-gather-on-save",
    WARNING,
    confirmed=SOURCE,
    fix="true where 2 B x parameters fit rank 0's host, else plan a zero_to_fp32 step",
    source="DeepSpeed#2413, chatglm_finetuning#212, LLaMA-Factory#253",
)
def gather_on_save(setup: Setup) -> Hits:
    """Stage 3 without gathering the 16-bit weights at save: save_pretrained writes nothing that can be used."""
    key = setup.zero.first(*_SAVES)
    if setup.ds and setup.stage == 3 and not (key and setup.zero.flag(key)):
        size = f" ({gib(setup.params * HALF, 0)} GiB on rank 0's host)" if setup.params else ""
        edit = setup.zero.put(key or _SAVES[0], True)
        says = "is false" if key else "is absent, which means false"
        yield setup.zero.hit(key or _SAVES[0], f"{says}: a save holds shards only{size}", edit)


@rule("zero-world-size-1", WARNING, fix="offload, LoRA, or stage 0", confirmed=COUNT, source="LLaVA#528, trl#2784")
def one_gpu(setup: Setup) -> Hits:
    """ZeRO on one GPU without offload: there is nobody to share with, so nothing is saved."""
    if setup.deepspeed and setup.stage and setup.world == 1 and not setup.offloads:
        yield setup.at_stage(f"stage {setup.stage} on one GPU without offload saves no memory")


@rule("ds-replicated-part-exceeds-gpu", ERROR, fix="stage 3", confirmed=COUNT, source="LLaMA-Factory#1931")
def replicated_part(setup: Setup) -> Hits:
    """Stages 1 and 2 keep 16-bit parameters (stage 1 gradients as well) whole on each GPU, and that alone is more
    than the GPU: more GPUs never help."""
    if setup.stage not in (1, 2) or setup.params is None or setup.gpu_bytes is None or setup.method != "full":
        return
    each = HALF * 2 if setup.stage == 1 and not setup.offload("optimizer").kind else HALF
    needed = each * setup.params
    if needed > setup.gpu_bytes:
        yield setup.at_stage(
            f"stage {setup.stage} keeps {each} B x {setup.params / 1e9:.2f} B parameters = "
            f"{gib(needed)} GiB on every GPU of {gib(setup.gpu_bytes)} GiB"
        )


@rule(
    "zero3-multinode-slow",
    WARNING,
    fix="stage 2 if it fits, hpZ, or hybrid sharding",
    confirmed=COUNT,
    source="DeepSpeed#2928, DeepSpeed#3485, DeepSpeed#6889, LLaVA#362",
    corrected="MiCS is no way out any more: DeepSpeed 0.19.8 has it no longer.",
)
def multinode_slow(setup: Setup) -> Hits:
    """Stage 3 over several nodes with less than 200 Gbit/s per node and no hpZ: bound by the network."""
    if setup.stage != 3 or setup.cluster is None or setup.nodes == 1 or setup.params is None:
        return
    bits = setup.cluster.network_bits_per_s
    node = bits * setup.cluster.gpus_per_node if bits else None
    if node and node < SLOW_NETWORK and (setup.zero.whole("zero_hpz_partition_size") or 1) == 1:
        seconds = 3 * HALF * setup.params * 8 / node
        yield setup.at_stage(
            f"each step moves 3 x {gib(HALF * setup.params, 1)} GiB between nodes: {seconds:.1f} s at "
            f"{node / 1e9:.0f} Gbit/s per node"
        )


@rule(
    "zero3-moe-leaf",
    ERROR,
    fix="zero_optimization.leaf_module.classes, accelerate's deepspeed_moe_layer_cls_names, or set_z3_leaf_modules",
    confirmed=SOURCE,
    versions="transformers < 5",
    source="LLaMA-Factory#1998, LLaMA-Factory#1931, DeepSpeed PR4966; runtime/zero/leaf_module_config.py",
    corrected="From transformers 5 the experts of a layer are one module with stacked weights, and nothing hangs.",
)
def moe_leaf(setup: Setup) -> Hits:
    """A mixture of experts at stage 3 without leaf modules: ranks gather different experts and hang."""
    if setup.model is None or setup.stage != 3 or not setup.older("transformers", "5.0"):
        return
    config = setup.model.config
    experts = next((config[k] for k in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(k)), None)
    classes = {part.class_name for part in setup.model.blocks}
    built_in = not setup.older("deepspeed", "0.19") and any(c.startswith(BUILT_IN_LEAVES) for c in classes)
    named = "leaf_module" in setup.zero or "deepspeed_moe_layer_cls_names" in setup.inline
    if experts and not built_in and not named and not any(setup.script.named("set_z3_leaf_modules")):
        yield setup.at_stage(f"{setup.model.name} has {experts} experts a layer and no leaf module is named")


@rule("native-moe-zero3", ERROR, fix="stage 1 or 2", confirmed=SOURCE, source="DeepSpeed runtime/engine.py")
def native_moe(setup: Setup) -> Hits:
    """DeepSpeed's own MoE layer at stage 3: assert."""
    for call in setup.script.named("MoE"):
        if setup.stage == 3 and "deepspeed" in setup.script.imports:
            yield setup.script.hit(call, "", "deepspeed.moe.MoE does not run at stage 3")


@rule(
    "elastic-ckpt-zero3",
    WARNING,
    fix="remove it; use a universal checkpoint",
    confirmed=RUN,
    source="DeepSpeed PR1525; runtime/zero/config.py",
)
def elastic_checkpoint(setup: Setup) -> Hits:
    """elastic_checkpoint at stage 3: not supported, and loading takes a lot of host RAM."""
    if setup.stage == 3 and setup.zero.flag("elastic_checkpoint"):
        edit = setup.zero.put("elastic_checkpoint", False)
        yield setup.zero.hit("elastic_checkpoint", "true at stage 3 has no effect in DeepSpeed", edit)


@rule(
    "zero3-torch-compile",
    WARNING,
    fix="newer versions, or stage 1 or 2",
    confirmed=THREAD,
    versions="deepspeed < 0.14; compiled_autograd: deepspeed < 0.16.1 or torch < 2.6; deepcompile: torch 2.9",
    source="pytorch#115484, DeepSpeed#6719, DeepSpeed PR7755, DeepSpeed#7487",
)
def compiled(setup: Setup) -> Hits:
    """torch.compile at stage 3 on versions that cannot: a crash, or many graph breaks."""
    if setup.stage != 3:
        return
    asked = setup.args.flag("torch_compile") or any(c.path == "torch.compile" for c in setup.script.named("compile"))
    have = setup.versions
    if asked and setup.older("deepspeed", "0.14"):
        yield setup.at_stage(f"torch.compile at stage 3 fails on DeepSpeed {have['deepspeed']}", severity=ERROR)
    if setup.ds.flag("compile.compiled_autograd") and (
        setup.older("deepspeed", "0.16.1") or setup.older("torch", "2.6")
    ):
        yield setup.ds.hit(
            "compile", f"needs DeepSpeed 0.16.1 and torch 2.6, not {have['deepspeed']} and {have['torch']}"
        )
    if setup.ds.flag("compile.deepcompile") and have["torch"].startswith("2.9"):
        yield setup.ds.hit("compile.deepcompile", f"does not run at stage 3 on torch {have['torch']}")


@rule(
    "zero-no-sync",
    ERROR,
    fix="remove it: the engine accumulates by itself",
    confirmed=SOURCE,
    source="DeepSpeed runtime/engine.py, no_sync",
)
def no_sync(setup: Setup) -> Hits:
    """The loop calls engine.no_sync at stage 2 or 3: assert."""
    for call in setup.script.named("no_sync"):
        if setup.stage in (2, 3) and not call.path.startswith("accelerator"):
            yield setup.script.hit(call, "", f"{call.path}() asserts at stage {setup.stage}")
