"""Section E, arguments of DDP and FSDP in Python and of the Trainer's DDP. Checked against torch 2.13."""

from __future__ import annotations

from estimators.units import gib
from selector.checks.registry import COUNT, ERROR, INFO, RUN, SOURCE, THREAD, WARNING, Hits, rule
from selector.checks.setup import Setup

FSDP1 = ("FullyShardedDataParallel", "FSDP")
LARGE_VOCABULARY = 128_000


def reentrant(setup: Setup) -> bool:
    """Whether checkpointing re-enters backward: as said, else by the version's default."""
    key = setup.args.first("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
    said = setup.args.flag(f"{key}.use_reentrant") if key else None
    if said is None:
        said = setup.args.flag("use_reentrant_gc")
    return setup.older("transformers", "5.0") if said is None else said


def unused(setup: Setup) -> bool:
    """find_unused_parameters is on, in a file or in a call."""
    asked = any(call.kwargs.get("find_unused_parameters") is True for call in setup.script.calls)
    return asked or setup.args.flag("ddp_find_unused_parameters") is True


@rule(
    "fsdp-mesh-hybrid-version",
    ERROR,
    fix="torch 2.3",
    confirmed=THREAD,
    versions="torch < 2.3",
    source="pytorch#118906",
)
def mesh_hybrid(setup: Setup) -> Hits:
    """A device_mesh with HYBRID_SHARD and a wrap policy before torch 2.3: 'both process_group and device_mesh'."""
    for call in setup.script.named(*FSDP1):
        hybrid = "HYBRID_SHARD" in str(call.kwargs.get("sharding_strategy"))
        if setup.older("torch", "2.3") and hybrid and {"device_mesh", "auto_wrap_policy"} <= call.kwargs.keys():
            yield setup.script.hit(call, "device_mesh", f"with HYBRID_SHARD on torch {setup.versions['torch']}")


@rule("fsdp-ignored-frozen", WARNING, fix="shard it too", confirmed=THREAD, source="pytorch#104690")
def ignored_frozen(setup: Setup) -> Hits:
    """ignored_states or ignored_modules: what is ignored lies whole on every GPU."""
    for call in setup.script.named(*FSDP1, "fully_shard"):
        key = next((k for k in ("ignored_states", "ignored_modules", "ignored_params") if call.kwargs.get(k)), "")
        if key and setup.method in ("lora", "qlora", "freeze"):
            yield setup.script.hit(call, key, "what is ignored lies whole on every GPU")


@rule(
    "fsdp-root-vocab",
    WARNING,
    fix="wrap embedding and head by name, unless they are tied",
    confirmed=COUNT,
    source="verl PR5516",
    corrected="accelerate 1.15: the embedding is an FSDP2 unit of its own, norm and head stay gathered; information.",
)
def root_vocabulary(setup: Setup) -> Hits:
    """A large vocabulary (128k and more) without units of its own: the root gathers it at once."""
    if not setup.fsdp or setup.model is None or setup.model.tied or setup.fsdp.wrapping != "TRANSFORMER_BASED_WRAP":
        return
    matrices = [
        p for part in setup.model.roots for p in part.parameters if p.shape and max(p.shape) >= LARGE_VOCABULARY
    ]
    named = {"Embedding", "Linear"} & set(setup.fsdp.classes)
    rest = [p for p in matrices if not (setup.fsdp.version == 2 and setup.fsdp.is_launcher and p.kind == "embedding")]
    if rest and not named:
        size = 2 * sum(p.numel for p in rest)
        yield setup.fsdp.hit(
            "transformer_layer_cls_to_wrap",
            f"{', '.join(p.name for p in rest)[:80]} stay with the root: {gib(size)} to {gib(2 * size)} GiB gathered",
            severity=INFO,
        )


@rule(
    "ddp-bucket-copy",
    INFO,
    fix="gradient_as_bucket_view=True",
    confirmed=SOURCE,
    source="pytorch PR41954, pytorch#141813; torch nn/parallel/distributed.py",
)
def bucket_copy(setup: Setup) -> Hits:
    """DDP without gradient_as_bucket_view: buckets are a second copy of the gradients."""
    size = f": {gib(4 * setup.params)} GiB" if setup.params else ""
    for call in setup.script.named("DistributedDataParallel", "DDP"):
        if call.kwargs.get("gradient_as_bucket_view") in (None, False):
            yield setup.script.hit(call, "gradient_as_bucket_view", f"off: gradients are held twice{size}")


@rule(
    "ddp-gc-find-unused",
    ERROR,
    fix="find_unused_parameters False, or static_graph",
    confirmed=RUN,
    source="peft#313, accelerate#2017, longformer#63",
    corrected="Only with reentrant recompute; transformers 5 defaults to non-reentrant, where nothing fails: a "
    "warning there, for the search costs time.",
)
def checkpointing_unused(setup: Setup) -> Hits:
    """find_unused_parameters with reentrant checkpointing under DDP: a parameter is marked ready twice."""
    if not (unused(setup) and setup.checkpoints) or setup.args.flag("ddp_static_graph") or not setup.ddp:
        return
    key = "ddp_find_unused_parameters"
    if reentrant(setup):
        yield setup.args.hit(key, "true with reentrant checkpointing", setup.args.put(key, False))
    else:
        yield setup.args.hit(
            key,
            "true with checkpointing: it costs a search in every step",
            setup.args.put(key, False),
            severity=WARNING,
        )


@rule(
    "ddp-reentrant",
    ERROR,
    fix="use_reentrant False",
    confirmed=THREAD,
    source="trl#921, accelerate#3536",
    corrected="With find_unused_parameters false, which the Trainer sets beside checkpointing, reentrant recompute "
    "runs: an error only where the search is on.",
)
def ddp_reentrant(setup: Setup) -> Hits:
    """DDP, adapters and reentrant checkpointing, with find_unused_parameters on: marked ready twice."""
    if setup.ddp and setup.method in ("lora", "qlora") and setup.checkpoints and reentrant(setup):
        key = setup.args.first("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
        key = key or "gradient_checkpointing_kwargs"
        yield setup.args.hit(
            key,
            f"reentrant checkpointing with {setup.method} under DDP",
            setup.args.put(key, {"use_reentrant": False}),
            severity=ERROR if unused(setup) else INFO,
        )


@rule(
    "fits-on-one-gpu-use-ddp",
    INFO,
    fix="ddp, or ZeRO-1/2",
    confirmed=COUNT,
    source="OLMo#762, OpenTau PR273, litgpt#864",
)
def fits_on_one(setup: Setup) -> Hits:
    """Everything fits one GPU and the run shards anyway: up to 4.6 times slower was measured."""
    sharded = setup.fsdp or setup.stage == 3
    if not sharded or setup.estimate is None:
        return
    ddp = setup.estimate_of("ddp" if setup.cluster and setup.cluster.ranks > 1 else "single")
    if ddp is not None and ddp.gpu.process.high < ddp.gpu.capacity:
        message = f"DDP needs {gib(ddp.gpu.process.expected)} of {gib(ddp.gpu.capacity)} GiB and moves less"
        yield setup.fsdp.hit("version", message) if setup.fsdp else setup.at_stage(message)


@rule(
    "adam-foreach-temp",
    INFO,
    fix="fused=True, or foreach=False",
    confirmed=COUNT,
    source="verl PR5364, pytorch tutorials PR2568",
)
def foreach(setup: Setup) -> Hits:
    """AdamW's default, foreach, makes a temporary as large as one fp32 copy of the shard at each step."""
    key = setup.args.first("optim")
    asked = setup.args.word("optim") == "adamw_torch" if key else False
    for call in setup.script.named("AdamW", "Adam"):
        if call.path.startswith("torch.") and not ({"fused", "foreach"} & call.kwargs.keys()):
            yield setup.script.hit(call, "", "foreach is the default: a temporary of half the states at the step")
    if asked and not setup.deepspeed:
        size = f" of {gib(4 * setup.params / (setup.world or 1))} GiB" if setup.params and setup.fsdp else ""
        edit = setup.args.put("optim", "adamw_torch_fused")
        yield setup.args.hit("optim", f"adamw_torch steps by foreach, with a temporary{size}", edit)
