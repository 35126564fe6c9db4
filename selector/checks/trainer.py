"""Section F, TrainingArguments, PEFT and the trainers built on them. Checked against transformers 5.24."""

from __future__ import annotations

from estimators.readers.safe import load
from selector.checks.registry import ERROR, INFO, RUN, SOURCE, THREAD, WARNING, Hits, rule
from selector.checks.setup import Setup

ADAPTERS = ("lora", "qlora")
SHARDING = ("unsloth", "use_unsloth")


@rule(
    "trainer-fp16-bf16-both",
    ERROR,
    fix="keep one",
    confirmed=RUN,
    source="ai-responder#7; transformers training_args.py",
)
def both(setup: Setup) -> Hits:
    """fp16 and bf16 are both true: ValueError."""
    if setup.args.flag("fp16") and setup.args.flag("bf16"):
        yield setup.args.hit("fp16", "fp16 and bf16 are both true", setup.args.put("fp16", False))


@rule(
    "fp16-amp-trainable-fp16",
    ERROR,
    fix="trainable parameters in fp32, or bf16",
    confirmed=THREAD,
    source="peft#341, peft#1249, peft PR1336, axolotl#1031",
)
def amp_fp16(setup: Setup) -> Hits:
    """fp16 training of parameters that were loaded in fp16, without DeepSpeed: 'unscale FP16 gradients'."""
    if not setup.args.flag("fp16") or setup.deepspeed:
        return
    for call in setup.script.named("from_pretrained"):
        key = next((k for k in ("dtype", "torch_dtype") if k in call.kwargs), "")
        if key and str(call.kwargs[key]).endswith(("float16", "half")) and "bfloat" not in str(call.kwargs[key]):
            trains = setup.method not in ADAPTERS or any("modules_to_save" in c.kwargs for c in setup.script.calls)
            if trains:
                yield setup.script.hit(call, key, "fp16 parameters train under fp16=True")


@rule(
    "fp16-on-bf16-model",
    WARNING,
    fix="bf16",
    confirmed=THREAD,
    source="LLaMA-Factory#2959, LLaMA-Factory#4255, LLaMA-Factory#1998",
)
def fp16_on_bf16(setup: Setup) -> Hits:
    """fp16 training of a model that was made in bf16, on cards that have bf16: overflow, the loss scale collapses."""
    name, block, key = setup.precision_at
    if name != "fp16" or setup.model is None or setup.capability is None or setup.capability < 8:
        return
    dtype = setup.model.config.get("dtype") or setup.model.config.get("torch_dtype")
    if dtype == "bfloat16":
        yield block.hit(key, f"fp16, and {setup.model.name} was made in bf16")


@rule(
    "save-only-load-best",
    ERROR,
    fix="drop one",
    confirmed=SOURCE,
    source="transformers PR28866; transformers trainer.py",
)
def load_best(setup: Setup) -> Hits:
    """save_only_model with load_best_model_at_end under FSDP or DeepSpeed: ValueError."""
    wrapped = setup.fsdp or setup.deepspeed
    if wrapped and setup.args.flag("save_only_model") and setup.args.flag("load_best_model_at_end"):
        edit = setup.args.put("save_only_model", False)
        yield setup.args.hit("save_only_model", "true with load_best_model_at_end", edit)


@rule(
    "save-only-model-sharded",
    ERROR,
    fix="FULL_STATE_DICT, or save_only_model false",
    confirmed=SOURCE,
    source="transformers#36626; transformers trainer.py",
)
def save_sharded(setup: Setup) -> Hits:
    """save_only_model with SHARDED_STATE_DICT: ValueError at start."""
    if setup.fsdp and setup.args.flag("save_only_model") and setup.fsdp.state_dict == "SHARDED_STATE_DICT":
        edit = setup.args.put("save_only_model", False)
        yield setup.args.hit("save_only_model", "true with SHARDED_STATE_DICT", edit)


@rule(
    "device-map-in-distributed",
    ERROR,
    fix="remove it; for bitsandbytes {'': local_rank}",
    confirmed=SOURCE,
    source="trl#921; accelerate accelerator.py",
)
def device_map(setup: Setup) -> Hits:
    """device_map='auto' under a launch of several processes: ValueError."""
    several = (setup.world or 1) > 1 or setup.accel.word("distributed_type") in ("multi_gpu", "fsdp", "deepspeed")
    for call in setup.script.named("from_pretrained"):
        if call.kwargs.get("device_map") == "auto" and several and setup.stage != 3:
            yield setup.script.hit(call, "device_map", f"'auto' with {setup.world or 'several'} processes")
    if setup.args.word("device_map") == "auto" and several:
        yield setup.args.hit("device_map", "'auto' with several processes", setup.args.drop("device_map"))


@rule(
    "bnb8bit-optim-fsdp",
    WARNING,
    fix="accelerate 0.22",
    confirmed=THREAD,
    versions="accelerate < 0.22",
    source="accelerate#1902",
)
def bnb_optimizer(setup: Setup) -> Hits:
    """An 8-bit Adam with FSDP1 on accelerate before 0.22: states silently in 32 bit."""
    if setup.fsdp.version == 1 and "8bit" in setup.args.word("optim") and setup.older("accelerate", "0.22"):
        yield setup.args.hit("optim", f"keeps 32-bit states on accelerate {setup.versions['accelerate']}")


@rule("unsloth-with-sharding", ERROR, fix="off", confirmed=THREAD, source="LLaMA-Factory#3949")
def unsloth(setup: Setup) -> Hits:
    """use_unsloth with ZeRO-3 or FSDP: it sets a device_map of its own."""
    for key in SHARDING:
        if setup.args.flag(key) and setup.shards_params:
            how = "FSDP" if setup.fsdp else "ZeRO-3"
            yield setup.args.hit(key, f"true with {how}", setup.args.put(key, False))


@rule(
    "downcast-bf16",
    WARNING,
    fix="'no'",
    confirmed=SOURCE,
    source="accelerate#3197; accelerate commands/launch.py",
    corrected="Off TPU accelerate 1.15 ignores it.",
)
def downcast(setup: Setup) -> Hits:
    """downcast_bf16 true away from TPUs: no effect."""
    tpu = setup.accel.word("distributed_type") in ("xla", "tpu")
    if setup.accel.flag("downcast_bf16") and not tpu:
        yield setup.accel.hit("downcast_bf16", "has no effect off TPU", setup.accel.put("downcast_bf16", "no"))


@rule(
    "ddp-timeout-default",
    WARNING,
    fix="preprocess first; ddp_timeout; DEEPSPEED_TIMEOUT",
    confirmed=THREAD,
    source="LLaMA-Factory#2902, LLaMA-Factory#956, LLaMA-Factory#2424",
    corrected="A file does not say how long tokenising takes: information, where nothing is set and data is streamed "
    "through rank 0 first.",
)
def timeout(setup: Setup) -> Hits:
    """Tokenising on rank 0 for longer than 30 minutes with the default time-out: NCCL's watchdog aborts."""
    waits = any(setup.script.named("main_process_first", "local_main_process_first"))
    maps = any(setup.script.named("map"))
    if waits and maps and "ddp_timeout" not in setup.args and setup.args:
        yield setup.args.hit(
            "ddp_timeout", "is absent: other ranks wait 1800 s for the first one's map()", severity=INFO
        )


@rule(
    "stale-default-config", WARNING, fix="accelerate launch --config_file FILE", confirmed=THREAD, source="axolotl#394"
)
def stale_default(setup: Setup) -> Hits:
    """A default_config.yaml of accelerate lies on this machine and names another engine than the project's file."""
    default = setup.machine.default_config
    if default is None or not setup.accel or setup.accel.document.path.resolve() == default.resolve():
        return
    try:
        theirs = load(default).data.get("distributed_type")
    except ValueError:
        return
    mine = setup.accel.get("distributed_type")
    if theirs != mine:
        yield setup.accel.hit("distributed_type", f"{mine}, and {default} says {theirs}: name this file at launch")
