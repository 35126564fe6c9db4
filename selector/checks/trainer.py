"""Section F, TrainingArguments, PEFT and the trainers built on them. Checked against transformers 5.24."""

from __future__ import annotations

from estimators.readers.safe import load
from estimators.units import gib
from selector.checks.registry import COUNT, ERROR, INFO, RUN, SOURCE, THREAD, WARNING, Hits, rule
from selector.checks.setup import Setup

LOGIT_BYTES = 2 + 4 + 4  # 16-bit logits, their fp32 copy, its gradient
LOGIT_SHARE = 0.1  # of the GPU
MANY_TOKENS = 2048
LARGE = 7 * 10**9
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
    """fp16 training of parameters that were loaded in fp16, without DeepSpeed: 'attempting to unscale FP16 gradients'."""
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
    "peft-modules-to-save-cost",
    INFO,
    fix="leave it out if the vocabulary is not extended",
    confirmed=COUNT,
    source="peft#341, verl PR5516",
)
def modules_to_save(setup: Setup) -> Hits:
    """modules_to_save with embeddings: they train whole, 16 bytes a parameter."""
    key = setup.args.first("modules_to_save", "lora_modules_to_save", "additional_target")
    value = setup.args.get(key) if key else None
    calls = [c for c in setup.script.named("LoraConfig") if c.kwargs.get("modules_to_save")]
    names = str(value or (calls[0].kwargs["modules_to_save"] if calls else ""))
    if not any(word in names for word in ("embed", "lm_head", "wte")):
        return
    size = ""
    if setup.model is not None:
        matrices = [p.numel for part in setup.model.roots for p in part.parameters if len(p.shape) == 2]
        size = f": {gib(16 * sum(matrices))} GiB"
    message = f"{names[:80]} train whole, 16 B a parameter{size}"
    yield (
        setup.script.hit(calls[0], "modules_to_save", message)
        if calls and not key
        else setup.args.hit(key or "", message)
    )


@rule(
    "logits-memory",
    WARNING,
    fix="a fused or chunked loss",
    confirmed=COUNT,
    source="slime#2253, LongVA PR19, unsloth#2366, ProLong#10",
)
def logits(setup: Setup) -> Hits:
    """micro-batch x sequence x vocabulary x 10 bytes is more than a tenth of the GPU; no ZeRO stage changes that."""
    if setup.model is None or setup.gpu_bytes is None or setup.estimate is None:
        return
    work = setup.estimate.run.workload
    vocabulary = next((p.shape[0] for part in setup.model.roots for p in part.parameters if p.kind == "embedding"), 0)
    size = work.micro_batch * work.seq_len * vocabulary * LOGIT_BYTES
    if work.loss == "plain" and size > LOGIT_SHARE * setup.gpu_bytes:
        block = setup.args or setup.accel or setup.ds
        key = "per_device_train_batch_size" if setup.args else "train_micro_batch_size_per_gpu"
        yield block.hit(key, f"{work.micro_batch} x {work.seq_len} x {vocabulary} x {LOGIT_BYTES} B of logits = {gib(size)} "
                             f"GiB of {gib(setup.gpu_bytes)}")  # fmt: skip


@rule(
    "no-checkpointing-long",
    WARNING,
    fix="gradient_checkpointing, and flash or sdpa attention",
    confirmed=COUNT,
    source="LLaMA-Factory#2065, alpaca_lora_4bit#50",
)
def no_checkpointing(setup: Setup) -> Hits:
    """A model of 7 B or more with 2048 tokens or more and no checkpointing, or eager attention from 4k tokens."""
    length = setup.seq_len
    key = setup.args.first("activation_checkpointing", "gradient_checkpointing")
    if (
        setup.params
        and setup.params >= LARGE
        and length
        and length * setup.micro >= MANY_TOKENS
        and key
        and not setup.checkpoints
    ):
        yield setup.args.hit(key, f"off for {setup.micro} x {length} tokens of {setup.params / 1e9:.1f} B parameters",
                             setup.args.put(key, True))  # fmt: skip
    attention = setup.args.first("attn_implementation", "attn_impl", "flash_attn")
    if attention and setup.args.word(attention) in ("eager", "disabled") and length and length >= 4096:
        yield setup.args.hit(attention, f"eager attention over {length} tokens grows with their square")


@rule(
    "dpo-reference-model",
    WARNING,
    fix="LoRA without a reference, or a sharded reference",
    confirmed=COUNT,
    source="alignment-handbook#22",
)
def reference_model(setup: Setup) -> Hits:
    """DPO or GRPO that trains all parameters: a reference model lies beside it, and DPO doubles the sequences."""
    stage = setup.args.word("stage") or setup.args.word("rl") or setup.args.word("rlhf_type")
    named = any(setup.script.named("DPOConfig", "DPOTrainer", "GRPOConfig", "GRPOTrainer"))
    adapters = setup.method in ADAPTERS or setup.args.flag("precompute_ref_log_probs")
    if (stage in ("dpo", "grpo", "kto") or named) and not adapters:
        size = f": {gib(2 * setup.params)} GiB in 16 bit" if setup.params else ""
        message = f"a reference model beside the trained one{size}"
        key = setup.args.first("stage", "rl", "rlhf_type")
        call = next(setup.script.named("DPOConfig", "DPOTrainer", "GRPOConfig", "GRPOTrainer"), None)
        if key:
            yield setup.args.hit(key, message)
        elif call:
            yield setup.script.hit(call, "", message)


@rule(
    "quantized-checkpoint-dequantized",
    ERROR,
    fix="shard it",
    confirmed=THREAD,
    source="gpt-oss-recipes#23",
    corrected="An error only where the bf16 copy is more than the GPU; else information.",
)
def dequantised(setup: Setup) -> Hits:
    """An MXFP4 or FP8 checkpoint loaded with dequantize: the model in bf16, whole on each GPU under DDP."""
    for call in setup.script.named("Mxfp4Config", "FineGrainedFP8Config"):
        if call.kwargs.get("dequantize") is not True or setup.shards_params:
            continue
        size = 2 * setup.params if setup.params else 0
        over = bool(size and setup.gpu_bytes and size > setup.gpu_bytes)
        says = f": {gib(size)} GiB on each GPU" if size else ""
        yield setup.script.hit(call, "dequantize", f"the model in bf16{says}", severity=ERROR if over else INFO)


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
