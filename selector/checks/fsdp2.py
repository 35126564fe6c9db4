"""Section D, FSDP version 2. Checked against accelerate 1.15, transformers 5.24 and torch 2.13."""

from __future__ import annotations

from estimators.units import gib
from selector.checks.fsdp1_peft import quant_storage
from selector.checks.registry import ERROR, INFO, RUN, SOURCE, WARNING, Hits, rule
from selector.checks.setup import Setup

PLUGIN = "FullyShardedDataParallelPlugin"
_TRUTH = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0")
_LEGACY = ("backward_prefetch", "sync_module_states", "use_orig_params", "forward_prefetch")
_SIZES = ("dp_replicate", "dp_shard", "tp", "cp", "sp")


@rule(
    "fsdp2-torch-version",
    ERROR,
    fix="torch 2.6",
    confirmed=SOURCE,
    versions="torch < 2.6",
    source="accelerate utils/dataclasses.py",
)
def torch_version(setup: Setup) -> Hits:
    """FSDP2 on torch before 2.6: ImportError."""
    if setup.fsdp.version == 2 and setup.older("torch", "2.6"):
        yield setup.fsdp.hit("version", f"2 needs torch 2.6; you have {setup.versions['torch']}")


@rule(
    "fsdp2-reshard-type",
    ERROR,
    fix="true or false in version 2, a strategy's name in version 1",
    confirmed=RUN,
    source="accelerate utils/dataclasses.py",
)
def reshard_type(setup: Setup) -> Hits:
    """Version 2 with fsdp_reshard_after_forward that is not a boolean (a strategy's name), or, in Python, version 1
    with a boolean: ValueError."""
    value = setup.fsdp.get("reshard_after_forward")
    if (
        setup.fsdp.version == 2
        and value is not None
        and not isinstance(value, bool)
        and str(value).lower() not in _TRUTH
    ):
        keeps = str(value).upper() in ("SHARD_GRAD_OP", "NO_SHARD")
        edit = setup.fsdp.put("reshard_after_forward", not keeps)
        yield setup.fsdp.hit("reshard_after_forward", f"{str(value)[:40]} is not true or false", edit)
    for call in setup.script.named(PLUGIN):
        given = call.kwargs.get("reshard_after_forward")
        if call.kwargs.get("fsdp_version") == 1 and isinstance(given, bool) and "sharding_strategy" not in call.kwargs:
            yield setup.script.hit(call, "reshard_after_forward", f"{given} in version 1; name a sharding strategy")


@rule(
    "fsdp2-sharding-strategy-ignored",
    ERROR,
    fix="fsdp_reshard_after_forward; hybrid through parallelism_config",
    confirmed=SOURCE,
    source="accelerate utils/dataclasses.py",
)
def strategy_ignored(setup: Setup) -> Hits:
    """Version 2 with fsdp_sharding_strategy and no fsdp_reshard_after_forward: it is not read, SHARD_GRAD_OP becomes a
    full reshard and HYBRID_SHARD a flat one."""
    asked = setup.fsdp.text("sharding_strategy")
    if (
        setup.fsdp.version != 2
        or asked in ("", "FULL_SHARD", "1")
        or setup.fsdp.get("reshard_after_forward") is not None
    ):
        return
    name = setup.fsdp.sharding
    edits = (setup.fsdp.put("reshard_after_forward", False),) if name == "SHARD_GRAD_OP" else ()
    yield setup.fsdp.hit(
        "sharding_strategy", f"{name} is not read in version 2: the run shards fully over all ranks", *edits
    )


@rule(
    "accel-parallelism-config-v1",
    ERROR,
    fix="fsdp_version 2",
    confirmed=SOURCE,
    source="accelerate commands/launch.py",
    corrected="A YAML with FSDP1 passes the launcher and the plugin; ParallelismConfig refuses it later.",
)
def parallelism_v1(setup: Setup) -> Hits:
    """parallelism_config with fsdp_version 1 or without FSDP."""
    block = setup.accel.sub("parallelism_config")
    beyond = any((block.whole(f"parallelism_config_{name}_size") or 1) > 1 for name in _SIZES)
    if block and beyond and setup.fsdp.version == 1:
        edit = setup.fsdp.put("version", 2)
        yield setup.accel.hit("parallelism_config", "needs fsdp_version 2", edit)


@rule("fsdp2-legacy-keys", WARNING, fix="remove them", confirmed=RUN, source="accelerate utils/dataclasses.py")
def legacy_keys(setup: Setup) -> Hits:
    """Keys of version 1 in version 2: no effect."""
    for name in _LEGACY:
        key = setup.fsdp.key(name)
        if setup.fsdp.version == 2 and key in setup.fsdp.block.data:
            yield setup.fsdp.hit(name, "has no effect in version 2", setup.fsdp.block.drop(key))


@rule("fsdp2-forward-prefetch", ERROR, fix="leave it out", confirmed=RUN, source="accelerate utils/dataclasses.py")
def forward_prefetch(setup: Setup) -> Hits:
    """The plugin in Python with fsdp_version=2 and forward_prefetch: ValueError. The YAML's key is only ignored."""
    for call in setup.script.named(PLUGIN):
        if call.kwargs.get("fsdp_version") == 2 and call.kwargs.get("forward_prefetch") is not None:
            yield setup.script.hit(call, "forward_prefetch", f"{call.kwargs['forward_prefetch']} in version 2")


@rule(
    "fsdp2-local-state-dict",
    ERROR,
    fix="SHARDED_STATE_DICT or FULL_STATE_DICT",
    confirmed=RUN,
    source="accelerate utils/dataclasses.py",
)
def local_state_dict(setup: Setup) -> Hits:
    """Version 2 with LOCAL_STATE_DICT: ValueError."""
    if setup.fsdp.version == 2 and setup.fsdp.text("state_dict_type") in ("LOCAL_STATE_DICT", "2"):
        edit = setup.fsdp.put("state_dict_type", "SHARDED_STATE_DICT")
        yield setup.fsdp.hit("state_dict_type", "LOCAL_STATE_DICT is of version 1", edit)


@rule(
    "fsdp-version-default",
    INFO,
    fix="write fsdp_version",
    confirmed=RUN,
    source="transformers PR45640; accelerate utils/dataclasses.py, transformers training_args.py",
)
def version_default(setup: Setup) -> Hits:
    """fsdp_version is absent: accelerate 1.15 starts version 1, transformers 5.24 version 2."""
    if setup.fsdp and not setup.fsdp.stated and setup.fsdp.owner != "axolotl":
        edit = setup.fsdp.put("version", setup.fsdp.version)
        yield setup.fsdp.hit("version", f"is absent; this file starts version {setup.fsdp.version}", edit)


@rule(
    "fsdp-qlora-quant-storage",
    ERROR,
    fix="bnb_4bit_quant_storage bfloat16",
    confirmed=SOURCE,
    source="accelerate utils/fsdp_utils.py",
)
def qlora_storage(setup: Setup) -> Hits:
    """Version 2 with a 4-bit base stored as uint8, bitsandbytes' default: left out of sharding, whole on every GPU."""
    calls = list(setup.script.named("BitsAndBytesConfig"))
    stated = quant_storage(setup)
    if setup.fsdp.version == 2 and setup.bits == 4 and (stated == "uint8" or (calls and not stated)):
        size = f": {gib(0.55 * setup.params)} GiB" if setup.params else ""
        message = f"the 4-bit base is stored as uint8 and replicated, 0.55 B a parameter{size}"
        yield setup.script.hit(calls[0], "", message) if calls else setup.args.hit("bnb_4bit_quant_storage", message)


@rule(
    "fsdp2-upcast-frozen",
    WARNING,
    fix="accelerate 1.15",
    confirmed=SOURCE,
    versions="accelerate 1.10 to 1.14",
    source="accelerate#3844; accelerate utils/fsdp_utils.py",
)
def upcast_frozen(setup: Setup) -> Hits:
    """Version 2 with mixed precision and adapters: that accelerate lifts the frozen base to fp32 shards."""
    between = setup.older("accelerate", "1.15") and not setup.older("accelerate", "1.10")
    if setup.fsdp.version == 2 and between and setup.method == "lora" and setup.precision_at[0] == "bf16":
        yield setup.fsdp.hit("version", f"accelerate {setup.versions['accelerate']} lifts the frozen base to fp32")


@rule(
    "fsdp2-no-shard-dim",
    ERROR,
    fix="leave dp_shard above 1",
    confirmed=SOURCE,
    source="accelerate PR4180; accelerate parallelism_config.py",
    corrected="Context parallel ranks shard as well (the mesh dp_shard_cp): only tensor parallelism uses ranks up.",
)
def no_shard_dimension(setup: Setup) -> Hits:
    """Tensor parallelism uses up all ranks: nothing is left to shard over."""
    tensor = setup.accel.whole("parallelism_config.parallelism_config_tp_size") or 1
    if setup.fsdp and tensor > 1 and setup.world and tensor >= setup.world:
        yield setup.accel.hit("parallelism_config", f"tp {tensor} takes all {setup.world} ranks")
