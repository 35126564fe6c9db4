"""Section F, what training options cost. Checked against transformers 5.24."""

from __future__ import annotations

from estimators.units import gib
from selector.checks.registry import COUNT, ERROR, INFO, THREAD, WARNING, Hits, rule
from selector.checks.setup import Setup

LOGIT_BYTES = 2 + 4 + 4  # 16-bit logits, their fp32 copy, its gradient
LOGIT_SHARE = 0.1  # of the GPU
MANY_TOKENS = 2048
LARGE = 7 * 10**9
ADAPTERS = ("lora", "qlora")


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
        key = block.first(key, "micro_batch_size") or key
        yield block.hit(
            key,
            f"{work.micro_batch} x {work.seq_len} x {vocabulary} x {LOGIT_BYTES} B of logits = {gib(size)} "
            f"GiB of {gib(setup.gpu_bytes)}",
        )


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
        yield setup.args.hit(
            key,
            f"off for {setup.micro} x {length} tokens of {setup.params / 1e9:.1f} B parameters",
            setup.args.put(key, True),
        )
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
