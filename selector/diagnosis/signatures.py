"""Text of errors -> the rule that explains them. What a rule says of its trigger and fix is not repeated here."""

from __future__ import annotations

import re

from estimators.values import dataclass


@dataclass(frozen=True, slots=True)
class Signature:
    """A pattern inside one line of a log; ``rule`` explains it, ``says`` adds what the message alone shows."""

    pattern: re.Pattern[str]
    rule: str
    says: str = ""
    kind: str = "engine-error"


def _signature(pattern: str, rule: str, says: str = "", kind: str = "engine-error") -> Signature:
    return Signature(re.compile(pattern, re.IGNORECASE), rule, says, kind)


HOST, NCCL, BUILD, CONFIG = "host-kill", "nccl", "build", "config-error"

SIGNATURES: tuple[Signature, ...] = (
    # the host; torch's launcher ends the other ranks "via Signals.SIGKILL" after any failure
    _signature(
        r"exit ?code ?: ?-9\b|return code = -9|Signal 9 \(SIGKILL\)|(?<!Signals\.)\bSIGKILL\b|oom-kill|Out of memory: Killed",
        "host-ram-insufficient",
        "the kernel killed the process: host RAM, or the container's limit, ran out",
        HOST,
    ),
    _signature(
        r"DefaultCPUAllocator: (?:can't|not enough)|Cannot allocate memory|std::bad_alloc",
        "host-ram-insufficient",
        "an allocation on the host failed",
        HOST,
    ),
    _signature(
        r"pin_memory.*out of memory|cudaHostAlloc|cudaErrorMemoryAllocation.*pin|CUDA error: out of memory.*pin",
        "pin-memory-host",
        "pinning host memory failed",
        HOST,
    ),
    # batch and precision
    _signature(r"Either train_batch_size or train_micro_batch_size_per_gpu needs", "ds-batch-none", kind=CONFIG),
    _signature(r"bfloat16 and fp16 modes cannot be simultaneously", "ds-fp16-bf16-both", kind=CONFIG),
    _signature(r"At most one of fp16 and bf16", "trainer-fp16-bf16-both", kind=CONFIG),
    _signature(r"config values that mismatch TrainingArguments", "hf-ds-mismatch", kind=CONFIG),
    _signature(r"Attempting to unscale FP16 gradients", "fp16-amp-trainable-fp16", kind=CONFIG),
    _signature(r"loss scale already at minimum", "fp16-on-bf16-model", "fp16 overflows in every step", CONFIG),
    _signature(r"doesn't support bf16/gpu|bf16.{0,40}(?:Ampere|not supported)", "bf16-needs-ampere", kind=CONFIG),
    _signature(r"--tf32 requires Ampere", "tf32-needs-ampere", kind=CONFIG),
    _signature(r"FlashAttention only supports", "flash-attn-arch", kind=CONFIG),
    # the DeepSpeed configuration
    _signature(
        r"offload_(?:param|optimizer)\W+Input should be a valid dict|offload_\w+.{0,40}not a valid dict",
        "ds-offload-object",
        kind=CONFIG,
    ),
    _signature(r"Extra inputs are not permitted|extra fields not permitted", "ds-unknown-key", kind=CONFIG),
    _signature(r"untested ZeRO Optimizer", "ds-untested-optimizer", kind=CONFIG),
    _signature(r"ZeRO-Offload with a client provided optimizer", "ds-offload-client-optimizer", kind=CONFIG),
    _signature(r"Partial offloading only supported", "offload-ratio-stage", kind=CONFIG),
    _signature(
        r"requires bf16_master_weights_and_grads|master_weights_and_grads is only supported with ZeRO",
        "ds-bf16-master-flags",
        kind=CONFIG,
    ),
    _signature(r"neither `?hidden_size`? nor `?hidden_sizes", "ds-auto-hidden-size", kind=CONFIG),
    _signature(r"Apex AMP integration has been removed", "ds-amp-with-zero", kind=CONFIG),
    _signature(
        r"has been removed.{0,200}(?:8489|ZeRO)", "ds-unknown-key", "a block that DeepSpeed no longer has", CONFIG
    ),
    _signature(r"more elements.{0,40}buffer size|exceed.{0,20}buffer size", "nvme-buffer-size", kind=CONFIG),
    _signature(
        r"buffer nbytes.{0,40}file bytes|not enough space|No space left on device", "nvme-disk-space", kind=CONFIG
    ),
    _signature(r"expected str, bytes or os.PathLike object, not NoneType", "nvme-needs-path-aio", kind=CONFIG),
    # the Hugging Face stack
    _signature(r"following accelerate config variables will be ignored", "accel-ds-file-and-inline", kind=CONFIG),
    _signature(r"fsdp_cpu_ram_efficient_loading` set `--fsdp_sync", "fsdp-efficient-loading-sync", kind=CONFIG),
    _signature(r"Could not find the transformer layer class", "fsdp-wrap-class", kind=CONFIG),
    _signature(r"`--use_parallelism_config` without", "accel-parallelism-config-v1", kind=CONFIG),
    _signature(
        r"not supported with FSDP2, please set to a `bool`|invalid truth value", "fsdp2-reshard-type", kind=CONFIG
    ),
    _signature(r"forward_prefetch is not yet implemented in FSDP2", "fsdp2-forward-prefetch", kind=CONFIG),
    _signature(r"can't both be set to True. Use FSDP's activation", "fsdp-ac-duplicate", kind=CONFIG),
    _signature(r"save_only_model option is not compatible", "save-only-model-sharded", kind=CONFIG),
    _signature(r"can't be used with `save_only_model`", "save-only-load-best", kind=CONFIG),
    _signature(r"loaded with `device_map='auto'` in any distributed", "device-map-in-distributed", kind=CONFIG),
    _signature(r"Zero-?3 is not compatible with .{0,80}device_map", "zero3-device-map", kind=CONFIG),
    _signature(
        r"torch\.Size\(\[0\]\)",
        "zero3-gather-on-save",
        "weights that ZeRO-3 holds as shards were read as whole",
        CONFIG,
    ),
    # torch
    _signature(r"uniform dtype but got", "fsdp-qlora-dtype", kind=CONFIG),
    _signature(
        r"uniform `?requires_grad|Must flatten tensors with uniform requires_grad", "fsdp-use-orig-params", kind=CONFIG
    ),
    _signature(r"Cannot flatten integer dtype", "fsdp-8bit", kind=CONFIG),
    _signature(r"marked (?:as )?ready twice|mark a variable ready only once", "ddp-gc-find-unused", kind=CONFIG),
    _signature(
        r"Recomputed values for the following tensors have different metadata|A different number of tensors was saved",
        "zero3-peft-nonreentrant",
        "recompute met other tensors than forward saved",
        CONFIG,
    ),
    _signature(r"both process_group and device_mesh", "fsdp-mesh-hybrid-version", kind=CONFIG),
    _signature(r"group_size.{0,40}world.?size", "hybrid-world-size", kind=CONFIG),
    _signature(r"no_sync context manager is incompatible", "zero-no-sync", kind=CONFIG),
    _signature(r"checkpoint being loaded used a DP world size", "resume-world-size", kind=CONFIG),
    _signature(r"'lm_head(?:\.weight)?'", "fsdp2-tied-embeddings", kind=CONFIG),
    # communication
    _signature(r"Using RTX 4000 series|RTX 4000 series doesn't support", "rtx40-p2p-env", kind=NCCL),
    _signature(
        r"Watchdog caught collective operation timeout|collective operation timeout",
        "ddp-timeout-default",
        "a collective waited until its time-out: a rank was busy, gone, or ran other modules",
        NCCL,
    ),
    _signature(
        r"(?:nccl|collective).{0,120}out of memory|ncclUnhandledCudaError|Failed to CUDA (?:c|m)alloc",
        "nccl-reserve",
        "NCCL found no memory outside of torch's",
        NCCL,
    ),
    # builds
    _signature(
        r"has no attribute 'ds_opt_adam'",
        "cpu-adam-build",
        "CPU Adam was not built; the real error stands above",
        BUILD,
    ),
    _signature(r"Installed CUDA version .{0,40} does not match", "cpu-adam-build", "toolkit and torch differ", BUILD),
    _signature(
        r"Ninja is required|Python\.h: No such file|CUDA_HOME does not exist|MissingCUDAException",
        "cpu-adam-build",
        "something to build with is missing",
        BUILD,
    ),
    _signature(r"Unable to JIT load the async_io|async_io.{0,80}not compatible|libaio", "aio-missing", kind=BUILD),
)

# Frames of a traceback, the innermost first, and the instant that they belong to.
FRAMES: tuple[tuple[str, str], ...] = (
    (
        r"_save_checkpoint|save_checkpoint|save_pretrained|_save_model|save_16bit_model|get_state_dict|full_state_dict",
        "save",
    ),
    (r"cross_entropy|\.float\(\)$|logits\.float|ForCausalLMLoss|lm_head\(|loss_function\(|in compute_loss$", "loss"),
    (
        r"in _create_fp32_partitions|in _setup_for_real_optimizer|initialize_optimizer_states|in initialize\b"
        r"|deepspeed\.initialize|from_pretrained|_init_infer_auto_device_map|in _prepare_deepspeed"
        r"|fully_shard\(|in _init_param_handle|model\.to\(",
        "load",
    ),
    (r"reduce_(?:ready|independent|ipg|scatter)|in average_tensor|__reduce_and_partition|allreduce_bucket", "reduce"),
    (
        r"optimizer\.step|in _single_tensor_adam|in _multi_tensor_adam|in _optimizer_step|unscale_and_clip|in adamw?$",
        "step",
    ),
    (r"\.backward\(|run_backward|in backward$|_engine_run_backward", "backward"),
    (r"in forward$|_call_impl|training_step", "forward"),
)
_FRAMES = tuple((re.compile(pattern), instant) for pattern, instant in FRAMES)
WINDOW = 80  # lines above the message that belong to its traceback


def instant_of(lines: list[str], at: int) -> str | None:
    """The instant of the innermost frame that tells, in the traceback that ends at line ``at``."""
    for line in reversed(lines[max(at - WINDOW, 0) : at + 1]):
        for pattern, instant in _FRAMES:
            if "out of memory" not in line and pattern.search(line):
                outer = "\n".join(lines[max(at - WINDOW, 0) : at])
                return "backward" if instant == "forward" and ".backward(" in outer else instant
    return None
