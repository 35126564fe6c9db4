"""``training_args.json``: TrainingArguments (transformers 5) and TRL's SFTConfig, which adds to them.

The engine of FSDP and DDP comes from accelerate.yaml; DeepSpeed's JSON is named here as well, so that the arguments
alone are a whole configuration under torchrun too.
"""

from __future__ import annotations

from typing import Any

from estimators.run import Run
from estimators.stacks.versions import at_least
from selector.configs import hyper, optimizers, refusal
from selector.configs.deepspeed import makes_optimizer

RENAMED = "5.24"  # transformers called it gradient_checkpointing before
SAYABLE_DDP = ("bucket_cap_mb", "static_graph", "find_unused_parameters", "sync_each_batch")


def arguments(run: Run) -> dict[str, Any]:
    """The arguments as plain data. Raises ``IllegalCombination`` for what the Trainer has no word for."""
    work = run.workload
    if run.strategy.engine == "ddp":
        refusal.only_options(run, SAYABLE_DDP, "TrainingArguments")
    made: dict[str, Any] = {
        "output_dir": "checkpoints",
        "per_device_train_batch_size": work.micro_batch,
        "gradient_accumulation_steps": work.grad_accum,
        "max_steps": hyper.STEPS,
        "learning_rate": hyper.learning_rate(run),
        "lr_scheduler_type": "constant",
        "weight_decay": hyper.WEIGHT_DECAY,
        "adam_beta1": hyper.BETAS[0],
        "adam_beta2": hyper.BETAS[1],
        "adam_epsilon": hyper.EPS,
        "max_grad_norm": hyper.GRADIENT_CLIPPING,
        **_precision(run),
        **_optimizer(run),
        **_checkpointing(run),
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": hyper.SAVE_EVERY,
        "save_total_limit": 2,
        "report_to": "none",
        "seed": hyper.SEED,
        "dataloader_drop_last": True,
    }
    return {**made, **_engine(run), **_loss(run), **(_trl(run) if work.stack == "trl" else {})}


def _precision(run: Run) -> dict[str, Any]:
    """Pure 16 bit without DeepSpeed is no mixed precision: the model is loaded so. DeepSpeed's JSON must agree."""
    mixed = run.workload.precision.endswith("-mixed") or run.strategy.engine == "deepspeed"
    return {name: mixed and run.settings.compute_dtype == name for name in ("bf16", "fp16")}


def _optimizer(run: Run) -> dict[str, Any]:
    """DeepSpeed's own optimizer stands in its JSON, and ``optim`` is not read then."""
    if run.strategy.engine == "deepspeed" and makes_optimizer(run):
        return {}
    return {"optim": optimizers.trainer_name(run)}


def _checkpointing(run: Run) -> dict[str, Any]:
    """``full`` is the Trainer's own; other ways are applied to the model in the script."""
    renamed = at_least(run.settings.versions["transformers"], RENAMED)
    name = f"{'activation' if renamed else 'gradient'}_checkpointing"
    if run.workload.checkpointing != "full":
        return {name: False}
    return {name: True, f"{name}_kwargs": {"use_reentrant": False}}


def _engine(run: Run) -> dict[str, Any]:
    knobs, made = run.settings.knobs, dict[str, Any]()
    if run.strategy.engine == "deepspeed":
        if run.strategy.stage == 3 and not knobs["zero_init"]:
            raise refusal.refuse(run, "the Trainer always builds the model under zero.Init at stage 3")
        made["deepspeed"] = "ds_config.json"
    if run.strategy.engine == "ddp":
        made["ddp_find_unused_parameters"] = bool(knobs["find_unused_parameters"])
        made["ddp_bucket_cap_mb"] = int(knobs["bucket_cap_mb"])
        if knobs["static_graph"]:
            made["ddp_static_graph"] = True
    if knobs.get("sync_each_batch") and run.strategy.engine != "deepspeed":
        made["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    if run.workload.compile:
        made["torch_compile"] = True
    return made


def _loss(run: Run) -> dict[str, Any]:
    """liger-kernel's fused head and loss, and nothing else of it: the estimate changes the loss alone."""
    if run.workload.loss != "fused":
        return {}
    others = dict.fromkeys(("rope", "rms_norm", "swiglu", "cross_entropy"), False)
    return {"use_liger_kernel": True, "liger_kernel_config": {**others, "fused_linear_cross_entropy": True}}


def _trl(run: Run) -> dict[str, Any]:
    """Sequences of exactly the length that was estimated; TRL's own loss that skips logits only where asked."""
    return {"max_length": run.workload.seq_len, "packing": True, "dataset_text_field": "text", "loss_type": "nll"}
