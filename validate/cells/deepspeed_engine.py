"""Build DeepSpeed from a resolved run, exactly as its knobs say, and label what it allocates."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from estimators.knobs import Knob
from estimators.run import Run
from estimators.strategy import knobs_of

# Attributes of DeepSpeed's optimizers (stage_1_and_2.py, stage3.py, bf16_optimizer.py, fp16/*.py) by category.
OWNED: Mapping[str, tuple[str, ...]] = {
    "gradients": ("averaged_gradients", "all_grad_tensors", "grads_in_partition", "grad_partitions_flat_buffer",
                  "fp32_groups_gradients_flat", "accumulated_grads_in_cpu"),
    "master": ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_flat_partition",
               "fp32_groups", "fp32_groups_flat"),
    "params": ("bit16_groups_flat", "lp_param_buffer", "bf16_groups_flat", "fp16_groups_flat",
               "param_groups_fp16_flat_cpu_memory"),
    "buffers": ("temp_grad_buffer_for_cpu_offload", "temp_grad_buffer_for_gpu_offload",
                "param_buffer_of_bit16_for_cpu_offload_groups"),
}  # fmt: skip

# Sites that make what nobody owns when it is looked at. Everything else of DeepSpeed is a temporary.
SITES = {
    "partition_parameters.py:_all_gather_sequential": "params",
    "partition_parameters.py:_allgather_params": "params",
    "partition_parameters.py:wait": "params",
    "partition_parameters.py:_partition_param": "params",
    "stage_1_and_2.py:reduce_independent_p_g_buckets_and_remove_grads": "gradients",  # clone of an oversized one
    "zero/linear.py": "other",
    "engine.py:forward": "other",
    "engine.py:backward": "other",
    "loss_scaler.py": "other",
    "deepspeed/comm/": "other",  # gloo's own copies; NCCL has none
    "utils/nvtx.py:wrapped_fn": "temporaries",  # torch.cat before a reduce-scatter
    "swap_tensor/": "buffers",  # what goes to a disk passes through these
    "deepspeed/runtime/": "temporaries",
}

WAITING = ("all_reduce", "reduce_scatter_fn", "all_gather_into_tensor", "allgather_fn")  # of deepspeed.comm


def prepare() -> None:
    """Import what is slow, once, before ranks are forked, and set DeepSpeed up for the CPU."""
    import peft  # noqa: F401
    import transformers.models.llama.modeling_llama
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    on_cpu()


def on_cpu() -> None:
    """Choose the CPU and switch off ops that would be compiled; a quiet log; collectives that wait for gloo."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import logging
    import warnings

    warnings.filterwarnings("ignore", category=FutureWarning)
    import deepspeed
    import deepspeed.comm
    import deepspeed.ops
    import deepspeed.runtime.zero.muon.muon_optimizer
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    for name in WAITING:
        function = getattr(deepspeed.comm, name)
        if not hasattr(function, "waits"):
            setattr(deepspeed.comm, name, _waiting(function))


def _waiting(function: Callable[..., Any]) -> Callable[..., Any]:
    """gloo's thread drops its reference a moment after the call returns: wait for it, or a census sees both."""
    import time

    class Later:
        """A handle whose ``wait`` gives that thread its moment."""

        def __init__(self, handle: Any) -> None:
            self.handle = handle

        def wait(self) -> None:
            self.handle.wait()
            time.sleep(0.001)

    def call(*args: Any, **kwargs: Any) -> Any:
        held = [(t, t._use_count()) for t in tensors([*args, *kwargs.values()])]
        result = function(*args, **kwargs)
        if kwargs.get("async_op"):
            return Later(result)
        for _ in range(1000):
            if all(t._use_count() <= count for t, count in held):
                break
            time.sleep(0.0005)
        return result

    call.waits = function  # type: ignore[attr-defined]
    return call


def config_of(run: Run, nvme: str = "") -> dict[str, Any]:
    """The DeepSpeed JSON of a run."""
    zero: dict[str, Any] = {"stage": run.strategy.stage}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": run.workload.grad_accum,
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True, "fused": True}},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    precision = run.workload.precision
    if precision != "fp32":
        config[run.settings.compute_dtype] = {"enabled": True}
        if precision == "bf16":
            config["bf16"].update(bf16_master_weights_and_grads=True, bf16_optimizer_states=True)
    for what, where in (("offload_optimizer", run.strategy.optimizer), ("offload_param", run.strategy.params)):
        if where:
            zero[what] = {"device": where, "pin_memory": bool(run.settings.knobs["pin_memory"])}
            if where == "nvme":
                zero[what]["nvme_path"] = nvme
    for knob in knobs_of(run.strategy.base):
        if knob.name in run.settings.knobs:
            _write(config, zero, knob, run)
    return config


def _write(config: dict[str, Any], zero: dict[str, Any], knob: Knob, run: Run) -> None:
    value = run.settings.knobs[knob.name]
    section, _, key = knob.key.rpartition(".")
    if section == "data_types":
        if value != run.settings.param_dtype:
            config["data_types"] = {key: value}
    elif section.startswith("offload_"):
        if section in zero and (knob.name != "max_in_cpu" or zero[section]["device"] == "nvme"):
            zero[section][key] = value
    elif not section and knob.name != "mics":
        zero[key] = value


def tensors(found: Any) -> Iterator[Any]:
    """Tensors of nested lists and dictionaries."""
    import torch

    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, Mapping):
        for value in found.values():
            yield from tensors(value)
    elif isinstance(found, list | tuple):
        for value in found:
            yield from tensors(value)


def label_owned(engine: Any, census: Any, with_counters: bool) -> None:
    """Name everything that the engine reaches. The first name stays.

    ``with_counters``: torch's optimizers keep their step as a tensor; DeepSpeed's, which the cells stand for, do not.
    """
    optimizer = engine.optimizer
    for parameter in engine.module.parameters():
        label_gradient(parameter, census)
        shards = (getattr(parameter, name, None) for name in ("ds_tensor", "ds_secondary_tensor"))
        census.own("params", [parameter.data, *shards],
                   weak=True)  # fmt: skip
    census.own("buffers", engine.module.buffers(), weak=True)
    for label, names in OWNED.items():
        for name in names:
            for tensor in tensors(getattr(optimizer, name, None)):
                census.own(label, [tensor], weak=True)
                census.own("gradients", [tensor.grad if tensor.is_leaf else None], weak=True)
    label_buckets(optimizer, census)
    for state in getattr(optimizer, "optimizer", optimizer).state.values():
        census.own("optimizer", (t for t in tensors(state) if with_counters or t.dim()), weak=True)


def label_gradient(parameter: Any, census: Any) -> None:
    census.own("gradients", [parameter.grad, getattr(parameter, "grad_accum", None)], weak=True)


def label_buckets(optimizer: Any, census: Any) -> None:
    for bucket in getattr(optimizer, "ipg_buckets", {}).values():
        census.own("buffers", tensors(bucket.buffer), weak=True)
    census.own("gradients", tensors(getattr(optimizer, "grads_in_partition", None)), weak=True)


def watch(engine: Any, census: Any) -> list[Callable[[], None]]:
    """Label gradients as they arrive, and mark reductions."""
    optimizer, undo = engine.optimizer, []
    for name in ("process_gradients", "reduce_ready_partitions_and_remove_grads"):
        if hasattr(optimizer, name):
            undo.append(_labelled(optimizer, name, census))
    for owner, name in (
        (optimizer, "reduce_ipg_grads"),
        (optimizer, "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads"),
        (engine, "buffered_allreduce_fallback"),
    ):
        if hasattr(owner, name):
            undo.append(_marked(owner, name, census))
    if hasattr(optimizer, "parameter_offload"):
        undo.append(_label_fetched(optimizer.parameter_offload.get_param_coordinator(), census))
    return undo


def _marked(owner: Any, name: str, census: Any) -> Callable[[], None]:
    """Calls are regions; a byte is allocated at both ends, because a census looks only where something happens."""
    import torch

    original = getattr(owner, name)

    def marked(*args: Any, **kwargs: Any) -> Any:
        with census.region("reduce"):
            torch.empty(1, dtype=torch.uint8)
            result = original(*args, **kwargs)
            torch.empty(1, dtype=torch.uint8)
        torch.empty(1, dtype=torch.uint8)
        return result

    setattr(owner, name, marked)
    return lambda: setattr(owner, name, original)


def _label_fetched(coordinator: Any, census: Any) -> Callable[[], None]:
    """Parameters as they are gathered, for those that are released before anybody looks: of a leaf module all."""
    from deepspeed.utils import z3_leaf_module

    original = coordinator.fetch_sub_module

    def fetch(module: Any, forward: bool) -> Any:
        result = original(module, forward)
        fetched = module.parameters(recurse=z3_leaf_module(module))
        census.own("params", (p.data for p in fetched), weak=True)
        return result

    coordinator.fetch_sub_module = fetch
    return lambda: setattr(coordinator, "fetch_sub_module", original)


def _labelled(optimizer: Any, name: str, census: Any) -> Callable[[], None]:
    original = getattr(optimizer, name)

    def labelled(parameter: Any, *rest: Any) -> Any:
        label_gradient(parameter, census)
        result = original(parameter, *rest)
        label_buckets(optimizer, census)
        label_gradient(parameter, census)
        return result

    setattr(optimizer, name, labelled)
    return lambda: setattr(optimizer, name, original)


def forget() -> None:
    """Drop what DeepSpeed keeps in modules between two engines of one process."""
    from deepspeed.runtime.zero import parameter_offload, partition_parameters
    from deepspeed.utils import groups

    groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None
    parameter_offload.FWD_MODULE_STACK.clear()
    partition_parameters.Init.param_id = 0
