"""``train.py`` of a run: which templates, under which flags, with which constants."""

from __future__ import annotations

from textwrap import fill
from typing import Any

from estimators.errors import NotModelled
from estimators.memory import Estimate
from estimators.run import Run
from selector.configs import accelerate, hyper, optimizers, refusal
from selector.configs.compose import compose
from selector.configs.deepspeed import makes_optimizer
from selector.configs.model_files import auto_class, source_of, task_type
from selector.configs.wrapping import block_classes

SCRIPTED = ("torch", "deepspeed", "accelerate", "trainer", "trl")  # stacks with a train.py of ours
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
ENGINE_TEMPLATES = {"torch": "single", "ddp": "ddp", "fsdp2": "fsdp2", "fsdp1": "fsdp1"}
WHAT = {
    "torch": "plain PyTorch on one GPU", "ddp": "DistributedDataParallel", "fsdp2": "FSDP2 (fully_shard)",
    "fsdp1": "FSDP1 (FullyShardedDataParallel)", "deepspeed": "DeepSpeed ZeRO",
}  # fmt: skip


def kind_of(run: Run) -> str:
    """``entry.kind`` of plan.json: who runs the loop."""
    stack = run.workload.stack
    if stack in ("trainer", "trl"):
        return "trainer"
    if stack == "accelerate":
        return "accelerate"
    return "deepspeed" if run.strategy.engine == "deepspeed" else "torch"


def script(estimate: Estimate) -> str:
    """The script. Raises ``IllegalCombination`` or ``NotModelled`` for what it cannot say."""
    run = estimate.run
    _check(run)
    flags = flags_of(run)
    doc = f"{run.model.name}: {run.workload.method} training with {WHAT[run.strategy.engine]}.\n\n"
    doc += fill(f"Strategy {run.strategy.name.replace(',', ', ')}.", 110, break_on_hyphens=False)
    doc += "\nSettings stand below; README.md says why each is what it is. --help lists the arguments.\n"
    names = list(_templates(run, flags))
    written = optimizers.function(run) if _needs_optimizer(run, flags) else ""
    return compose(doc, names, flags, constants(estimate), written)


def _needs_optimizer(run: Run, flags: frozenset[str]) -> bool:
    """The Trainer makes its own, and so does DeepSpeed where its JSON names one."""
    kind = kind_of(run)
    return kind in ("torch", "accelerate") or (kind == "deepspeed" and "own_optimizer" in flags)


def _check(run: Run) -> None:
    work = run.workload
    if run.settings.optimizer == "lion" and run.settings.optimizer_impl == "ds-fused" and not makes_optimizer(run):
        raise refusal.refuse(run, "DeepSpeed's Lion is named in its JSON, which accelerate writes without optimizer")
    if work.stack in ("accelerate", "trainer", "trl"):
        accelerate.config(run)  # raises for what the launcher cannot say
    if work.loss == "chunked":
        raise refusal.refuse(run, "the script has no chunked loss", "give --loss fused or plain")
    if work.optimizer_in_backward:
        raise refusal.refuse(run, "the script does not step inside backward", "leave --optimizer-in-backward out")
    if work.method == "qlora" and work.quant == "gptq4":
        raise NotModelled("quant gptq4 needs a checkpoint that was quantised before; no name of one is known")
    if (
        work.precision == "fp16-mixed"
        and run.strategy.engine == "fsdp2"
        and kind_of(run) == "torch"
        and run.strategy.params
    ):
        raise refusal.refuse(run, "torch's GradScaler does not unscale gradients on the host", "give bf16-mixed")


def flags_of(run: Run) -> frozenset[str]:
    """Conditions of the templates that hold for this run."""
    work, settings, strategy, knobs = run.workload, run.settings, run.strategy, run.settings.knobs
    wrap = str(knobs.get("wrap", ""))
    offloaded = bool(strategy.params) and strategy.engine in ("fsdp1", "fsdp2")
    alone = strategy.engine == "torch"
    sharded = strategy.engine in ("fsdp1", "fsdp2") or strategy.stage == 3
    held = {
        "padded": work.padding == "right",
        "adapters": work.has_adapters,
        "freezing": work.method == "freeze",
        "quantised": work.method == "qlora",
        "placed": work.method == "qlora" and not sharded,
        "int8": work.quant == "int8",
        "kbit": bool(work.kbit_prepare) and work.method == "qlora",
        "checkpointing": work.checkpointing != "none",
        "full_recompute": work.checkpointing == "full",
        "recompute": work.checkpointing in ("selective", "every-2", "offload"),
        "selective": work.checkpointing == "selective",
        "every_2": work.checkpointing == "every-2",
        "offload": work.checkpointing == "offload",
        "compile": work.compile,
        "autocast": settings.autocast,
        "scaled": work.precision == "fp16-mixed" and strategy.engine != "deepspeed",
        "alone": alone,
        "host_tensors": offloaded,
        "device_tensors": not offloaded and not alone,
        "hybrid": strategy.sharding == "hybrid-shard",
        "unwrapped": wrap == "none",
        "embedding_unit": "embedding" in wrap,
        "head_unit": "head" in wrap,
        "prefetching": bool(knobs.get("forward_prefetch")) or knobs.get("backward_prefetch") == "none",
        "no_backward_prefetch": knobs.get("backward_prefetch") == "none",
        "deepspeed": strategy.engine == "deepspeed",
        "stage3": strategy.stage == 3,
        "zero_init": bool(knobs.get("zero_init")),
        "own_optimizer": not makes_optimizer(run),
        "ddp": strategy.engine == "ddp",
        "leaf_units": strategy.engine == "fsdp1" and work.has_adapters,
        "momentum": settings.optimizer == "sgd-momentum",
        "fused_loss": work.loss == "fused" and kind_of(run) != "trainer",  # which patches the model itself
    }
    return frozenset(name for name, holds in held.items() if holds)


def _templates(run: Run, flags: frozenset[str]) -> list[str]:
    kind, stack = kind_of(run), run.workload.stack
    names = ["arguments", "data", "model"]
    names += [name for name, flag in (("quantisation", "quantised"), ("adapters", "adapters"), ("freezing", "freezing"),
                                      ("recompute", "recompute")) if flag in flags]  # fmt: skip
    if kind == "trainer":
        names += ["deepspeed_rehearsal"] if "deepspeed" in flags else []
        return [*names, "loop_trl" if stack == "trl" else "loop_trainer"]
    names += [*(["liger"] if "fused_loss" in flags else []), "loss_plain", "report"]
    if kind == "accelerate":
        names += ["accelerate_leaves"] if "leaf_units" in flags else []
        names += ["accelerate_ddp"] if "ddp" in flags else []
        return [*names, "accelerate_start", "accelerate_saving", "loop_accelerate"]
    if kind == "deepspeed":
        return [*names, "loader", "deepspeed_rehearsal", "deepspeed_engine", "loop_deepspeed"]
    names += ["autocast"] if "autocast" in flags else []
    names += ["fsdp2_prefetch"] if "prefetching" in flags and run.strategy.engine == "fsdp2" else []
    return [*names, "loader", "start", ENGINE_TEMPLATES[run.strategy.engine], "checkpoint", "loop_torch"]


def constants(estimate: Estimate) -> dict[str, Any]:
    """A value for every constant of ``templates/settings.py``."""
    return {**_workload(estimate), **_engine(estimate.run)}


def _workload(estimate: Estimate) -> dict[str, Any]:
    run, work, settings = estimate.run, estimate.run.workload, estimate.run.settings
    attention = {"flash": "flash_attention_2"}.get(run.attention, run.attention)
    return {
        "MODEL": source_of(run.model), "AUTO_CLASS": auto_class(run.model),
        "TRUST_REMOTE_CODE": run.model.shapes == "formula", "LOAD_DTYPE": DTYPES[settings.load_dtype],
        "COMPUTE_DTYPE": DTYPES[settings.compute_dtype], "REDUCE_DTYPE": DTYPES[settings.reduce_dtype],
        "ATTENTION": attention, "BLOCK_CLASSES": block_classes(run), "SEQ_LEN": work.seq_len,
        "MICRO_BATCH": work.micro_batch, "GRAD_ACCUM": work.grad_accum, "GLOBAL_BATCH": hyper.global_batch(run),
        "LEARNING_RATE": hyper.learning_rate(run), "BETAS": hyper.BETAS, "EPS": hyper.EPS,
        "WEIGHT_DECAY": hyper.WEIGHT_DECAY, "MOMENTUM": hyper.MOMENTUM,
        "GRADIENT_CLIPPING": hyper.GRADIENT_CLIPPING, "STEPS": hyper.STEPS, "SAVE_EVERY": hyper.SAVE_EVERY,
        "SEED": hyper.SEED, "PREDICTED_PEAK_BYTES": round(estimate.gpu.expected),
        "LORA_RANK": work.lora_rank, "LORA_ALPHA": hyper.LORA_ALPHA_PER_RANK * work.lora_rank,
        "LORA_TARGETS": lora_targets(run), "MODULES_TO_SAVE": work.modules_to_save, "USE_DORA": work.method == "dora",
        "FP32_ADAPTERS": settings.adapter_dtype == "fp32", "TASK_TYPE": task_type(run.model),
        "FROZEN": frozen(run), "QUANT_TYPE": "nf4", "DOUBLE_QUANT": work.quant == "nf4-double",
        "QUANT_STORAGE": DTYPES.get(str(settings.knobs.get("quant_storage")), "uint8"),
    }  # fmt: skip


def _engine(run: Run) -> dict[str, Any]:
    knobs, strategy = run.settings.knobs, run.strategy
    prefetch = accelerate.PREFETCH.get(str(knobs.get("backward_prefetch")), "")
    reshard: Any = strategy.sharding != "shard-grad-op" and knobs.get("reshard_after_forward", True)
    return {
        "TAIL": _tail(run), "EMBEDDING": run.model.embedding, "SYNC_EACH_BATCH": bool(knobs.get("sync_each_batch")),
        "SHARDING_STRATEGY": strategy.sharding.upper().replace("-", "_"),
        "BACKWARD_PREFETCH": "" if prefetch == "NO_PREFETCH" else prefetch, "SHARD": knobs.get("shard"),
        "RESHARD_AFTER_FORWARD": reshard, "RESHARD_ROOT": reshard if knobs.get("reshard_root", True) else False,
        "RESHARD_TAIL": reshard if knobs.get("reshard_tail", True) else False,
        "FORWARD_PREFETCH": knobs.get("forward_prefetch"), "LIMIT_ALL_GATHERS": knobs.get("limit_all_gathers"),
        "USE_ORIG_PARAMS": knobs.get("use_orig_params"), "PIN_MEMORY": bool(knobs.get("pin_memory")),
        "GRADIENT_AS_BUCKET_VIEW": knobs.get("gradient_as_bucket_view"), "BUCKET_CAP_MB": knobs.get("bucket_cap_mb"),
        "STATIC_GRAPH": knobs.get("static_graph"), "FIND_UNUSED_PARAMETERS": knobs.get("find_unused_parameters"),
    }  # fmt: skip


def _tail(run: Run) -> tuple[str, ...]:
    """Modules behind the last block: final norm and head."""
    parts = run.model.parts
    last = max((at for at, part in enumerate(parts) if part.is_block), default=-1)
    return tuple(dict.fromkeys(p.name.rpartition(".")[0] for part in parts[last + 1 :] for p in part.parameters))


def lora_targets(run: Run) -> str | tuple[str, ...]:
    """peft's own word, or the names of the adapted modules, read from the model in which they were inserted."""
    targets = run.workload.lora_targets
    if targets != "attention":
        return targets
    names = (name.partition(".lora_A")[0] for part in run.model.blocks for name in (p.name for p in part.parameters)
             if ".lora_A." in name)  # fmt: skip
    return tuple(dict.fromkeys(name.rpartition(".")[2] for name in names))


def frozen(run: Run) -> tuple[str, ...]:
    """Module paths that do not train: the user's, or everything but the last blocks (method freeze without names)."""
    if run.workload.method != "freeze":
        return ()
    if run.workload.freeze:
        return run.workload.freeze
    still: list[str] = []
    for part in run.model.parts:
        if any(p.trainable for p in part.parameters):
            continue
        if part.is_block:
            still += [part.prefix.format(part.first + i) for i in range(part.count)]
        else:
            still += [p.name.rpartition(".")[0] for p in part.parameters]
    return tuple(dict.fromkeys(still))
