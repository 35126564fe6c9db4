"""The DeepSpeed JSON of a run: with numbers, or with ``auto`` where the Hugging Face integration fills it in.

Keys and defaults: deepspeed/runtime/config.py, zero/config.py, zero/offload_config.py (0.19.8). What ``auto`` becomes:
transformers/integrations/deepspeed.py, ``trainer_config_process`` and ``trainer_config_finalize``.
"""

from __future__ import annotations

from typing import Any

from estimators.knobs import Knob
from estimators.run import Run
from estimators.stacks.deepspeed import AUTO, FILES
from estimators.stacks.table import STACKS
from estimators.strategy import knobs_of
from selector.configs import hyper

# Written even at the engine's default, so that a later version with other defaults changes nothing.
ALWAYS = (
    "reduce_bucket_size", "allgather_bucket_size", "overlap_comm", "contiguous_gradients", "sub_group_size",
    "max_live_parameters", "max_reuse_distance", "prefetch_bucket_size", "param_persistence_threshold",
    "gather_16bit_on_save",
)  # fmt: skip
DEVICE_OF = {"offload_optimizer": "optimizer", "offload_param": "params"}
NVME_FOLDER = "nvme_swap"  # relative to the run's folder; make it a link to the local NVMe
# docs/_pages/config-json.md of DeepSpeed: asynchronous I/O of the swapper.
AIO = {"block_size": 1048576, "queue_depth": 8, "single_submit": False, "overlap_events": True}
TYPES = {"adamw": "AdamW", "adamw-fused": "AdamW", "lion": "Lion", "muon": "Muon"}


def makes_optimizer(run: Run) -> bool:
    """Whether the JSON names the optimizer; elsewhere the script or the Trainer makes it and DeepSpeed wraps it."""
    return run.settings.optimizer_impl in ("ds-fused", "ds-cpu") and STACKS[run.workload.stack].zero != "plugin"


def native(run: Run) -> dict[str, Any]:
    """Numbers throughout: for ``deepspeed.initialize`` and for accelerate."""
    config: dict[str, Any] = {
        "train_batch_size": hyper.global_batch(run),
        "train_micro_batch_size_per_gpu": run.workload.micro_batch,
        "gradient_accumulation_steps": run.workload.grad_accum,
        "gradient_clipping": hyper.GRADIENT_CLIPPING,
        "steps_per_print": 10,
        **_precision(run),
        "zero_optimization": _zero(run),
        **_optimizer(run, hyper.optimizer_params(run)),
    }
    return {**config, **_rest(run)}


def hugging_face(run: Run) -> dict[str, Any]:
    """``auto`` for all that TrainingArguments say too: one place for each number, and nothing that could disagree."""
    config = native(run)
    for key in (
        "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
    ):  # fmt: skip
        config[key] = AUTO
    for name in ("bf16", "fp16"):
        if name in config and run.workload.precision.endswith(("-mixed", "fp32")):
            config[name]["enabled"] = AUTO  # pure 16 bit stays written out: TrainingArguments have no word for it
    if "optimizer" in config:
        known = ("lr", "betas", "eps", "weight_decay")  # of the Trainer; a momentum stays a number
        params = config["optimizer"]["params"]
        config["optimizer"]["params"] = {k: AUTO if k in known else v for k, v in params.items()}
    zero, stage = config["zero_optimization"], run.strategy.stage
    filled = FILES.get(STACKS[run.workload.stack].zero, {}).get(stage, {})
    for knob in knobs_of(run.strategy.base):
        if filled.get(knob.name) == AUTO and knob.name not in run.strategy.options:
            zero[knob.key] = AUTO
    return config


def _precision(run: Run) -> dict[str, Any]:
    """``bf16.enabled`` keeps fp32 master weights: that is bf16-mixed. Pure bf16 says so for master and states."""
    precision, settings = run.workload.precision, run.settings
    if precision == "fp32":
        return {"bf16": {"enabled": False}, "fp16": {"enabled": False}}
    block: dict[str, Any] = {"enabled": True}
    if settings.compute_dtype == "fp16":
        block |= {"loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "min_loss_scale": 1}
    if not precision.endswith("-mixed"):
        block[f"{settings.compute_dtype}_master_weights_and_grads"] = True
        if settings.state_dtype == "bf16":
            block["bf16_optimizer_states"] = True
    return {settings.compute_dtype: block}


def _zero(run: Run) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": run.strategy.stage}
    for block, role in DEVICE_OF.items():
        device = getattr(run.strategy, role)
        if device:
            zero[block] = {"device": device, "pin_memory": bool(run.settings.knobs["pin_memory"])}
            if device == "nvme":
                zero[block]["nvme_path"] = NVME_FOLDER
    for knob in knobs_of(run.strategy.base):
        if _is_written(run, knob):
            _put(run, zero, knob)
    if run.strategy.params == "nvme":
        _fit_buffer(run, zero["offload_param"])
    return zero


def _fit_buffer(run: Run, block: dict[str, Any]) -> None:
    """The swapper asserts that the largest parameter fits one buffer; the engine's default is too small for most."""
    largest = max(p.numel for part in run.model.parts for p in part.parameters)
    if largest > int(run.settings.knobs["param_buffer_size"]) and "param_buffer_size" not in run.strategy.options:
        block["buffer_size"] = largest


def _is_written(run: Run, knob: Knob) -> bool:
    value = run.settings.knobs.get(knob.name)
    if value is None or knob.name in ("pin_memory", "zero_init", "grad_accum_dtype"):
        return False  # these stand elsewhere: in the offload blocks, in the script, in data_types
    return knob.name in ALWAYS or value != knob.default


def _put(run: Run, zero: dict[str, Any], knob: Knob) -> None:
    value = run.settings.knobs[knob.name]
    block, _, key = knob.key.rpartition(".")
    if not block:
        zero[knob.key] = value
    elif block in zero:
        zero[block][key] = value


def _optimizer(run: Run, params: dict[str, Any]) -> dict[str, Any]:
    if makes_optimizer(run):
        return {"optimizer": {"type": TYPES[run.settings.optimizer], "params": params}}
    return {"zero_allow_untested_optimizer": True}  # made outside; DeepSpeed tests its own and torch's Adam only


def _rest(run: Run) -> dict[str, Any]:
    """Dtypes beside the precision block, and the swapper's settings."""
    settings, rest = run.settings, dict[str, Any]()
    accumulated = settings.knobs.get("grad_accum_dtype")
    if accumulated is not None and accumulated != settings.compute_dtype:
        rest["data_types"] = {"grad_accum_dtype": accumulated}
    if run.workload.reduce_dtype:
        rest["communication_data_type"] = settings.reduce_dtype
    if "nvme" in (run.strategy.optimizer, run.strategy.params):
        rest["aio"] = dict(AIO)
    return rest
