"""Build a torch engine from a resolved run, exactly as the settings say, and label what it allocates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from estimators.run import Run


@dataclass
class TorchEngine:
    """A wrapped module and the few things that differ between engines."""

    module: Any
    stored_parameters: Callable[[], Iterable[Any]]
    micro_step: Callable[..., AbstractContextManager[Any]] = lambda last: nullcontext()
    forward_context: Callable[[], AbstractContextManager[Any]] = nullcontext
    undo: list[Callable[[], None]] = field(default_factory=list)
    reduces_in_calls: bool = (
        False  # gradients are reduced in calls that the census marks; else read the end of backward
    )

    def owned(self, optimizer: Any) -> Iterator[tuple[str, list[Any]]]:
        """What module and optimizer hold at this moment, by category."""
        import torch

        parameters = list(self.module.parameters())
        # a unit that is not resharded has its gathered parameters in place of its shards
        yield "params", [getattr(p, "_local_tensor", p) for p in parameters]
        yield "gradients", [p.grad for p in parameters if p.grad is not None]
        states = (t for state in optimizer.state.values() for t in state.values())
        yield "optimizer", [t for t in states if isinstance(t, torch.Tensor)]

    def close(self) -> None:
        for step in self.undo:
            step()


def dtype(name: str) -> Any:
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]


def wrapped(model: Any, run: Run, census: Any) -> TorchEngine:
    """The engine that a run's strategy names."""
    return {"torch": _single, "ddp": _ddp, "fsdp2": _fsdp2, "fsdp1": _fsdp1}[run.strategy.engine](model, run, census)


def device_of(model: Any, run: Run) -> Any:
    """Where the engine works: the rank's card for a run that was resolved for CUDA, unless its tensors are fake."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    is_fake = any(isinstance(p, FakeTensor) for p in model.parameters())
    if run.settings.device == "cuda" and torch.cuda.is_available() and not is_fake:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _autocast(run: Run, model: Any = None) -> Callable[[], AbstractContextManager[Any]]:
    import torch

    if not run.settings.autocast:
        return nullcontext
    kind = "cpu" if model is None else device_of(model, run).type
    return lambda: torch.autocast(kind, dtype(run.settings.compute_dtype))


def _single(model: Any, run: Run, census: Any) -> TorchEngine:
    return TorchEngine(model, lambda: list(model.parameters()), forward_context=_autocast(run, model))


# -- DDP -------------------------------------------------------------------------------------------------------------


DDP_FUNCTIONS = (
    "__init__", "_ddp_init_helper", "_set_static_graph", "_pre_forward", "_distributed_broadcast_coalesced",
)  # fmt: skip


def _ddp(model: Any, run: Run, census: Any) -> TorchEngine:
    from torch.nn.parallel import DistributedDataParallel

    knobs = run.settings.knobs
    census.label_sites({f"parallel/distributed.py:{function}": "buffers" for function in DDP_FUNCTIONS})
    with _broadcast_before_buckets(census):
        made = DistributedDataParallel(
            model,
            gradient_as_bucket_view=bool(knobs["gradient_as_bucket_view"]),
            bucket_cap_mb=int(knobs["bucket_cap_mb"]),
            static_graph=bool(knobs["static_graph"]),
            find_unused_parameters=bool(knobs["find_unused_parameters"]),
        )

    def micro_step(last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last or knobs["sync_each_batch"] else made.no_sync()

    return TorchEngine(made, lambda: list(made.parameters()), micro_step, _autocast(run, model))


@contextmanager
def _broadcast_before_buckets(census: Any) -> Iterator[None]:
    """The joined copies that rank 0 sends are gone before buckets are made, as under NCCL, however slow gloo's threads."""
    from torch.nn.parallel import DistributedDataParallel as Wrapper

    original = Wrapper._ddp_init_helper

    def settled(*args: Any, **kwargs: Any) -> Any:
        census.until_freed("parallel/distributed.py:__init__")
        return original(*args, **kwargs)

    with patch.object(Wrapper, "_ddp_init_helper", settled):
        yield


# -- FSDP2 -----------------------------------------------------------------------------------------------------------

FSDP2_SITES = {
    "_fsdp_collectives.py:_get_param_all_gather_inputs": "buffers",
    "_fsdp_collectives.py:allocate": "buffers",
    "_fsdp_param.py:<listcomp>": "params",  # init_all_gather_outputs: the gathered tensors
    "_fsdp_param.py:to_sharded_post_forward": "params",
    "_fsdp_param.py:to_accumulated_grad_if_needed": "gradients",
    "_fsdp_param.py:_init_sharded_param": "params",
    "_fsdp_param.py:all_gather_inputs": "buffers",
    "_fsdp_common.py:_to_dtype_if_needed": "buffers",
    "_fsdp_collectives.py:foreach_reduce": "gradients",
}


def _fsdp2(model: Any, run: Run, census: Any) -> TorchEngine:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    settings, knobs, device = run.settings, run.settings.knobs, device_of(model, run)
    reshard = knobs.get("reshard_after_forward", True) if run.strategy.sharding != "shard-grad-op" else False
    asked = {
        "mesh": _mesh(run, device.type),
        "mp_policy": MixedPrecisionPolicy(dtype(settings.compute_dtype), dtype(settings.reduce_dtype)),
        "reshard_after_forward": reshard,
        "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda")
        if run.strategy.params
        else OffloadPolicy(),
    }
    units = _units(model, run)
    tail = _tail(model, run)
    for unit in units:
        fully_shard(unit, **asked)
    if tail:
        fully_shard(tail, **{**asked, "reshard_after_forward": reshard and bool(knobs.get("reshard_tail", True))})
        units.append(tail[0])
    fully_shard(model, **{**asked, "reshard_after_forward": reshard if knobs.get("reshard_root", True) else False})
    for at, unit in enumerate(units):
        ahead = units[at + 1 : at + 1 + int(knobs["forward_prefetch"])]
        if ahead:
            unit.set_modules_to_forward_prefetch(ahead)
        if knobs["backward_prefetch"] != "pre":
            unit.set_modules_to_backward_prefetch([unit])  # itself: already gathered, so nothing is prefetched
    if knobs["backward_prefetch"] != "pre":
        model.set_modules_to_backward_prefetch([model])

    def micro_step(last: bool) -> AbstractContextManager[Any]:
        model.set_requires_gradient_sync(last or bool(knobs["sync_each_batch"]))
        return nullcontext()

    undo = watch_fsdp2(census)
    stored = lambda: [p._local_tensor for p in model.parameters()]  # noqa: E731
    return TorchEngine(model, stored, micro_step, undo=undo, reduces_in_calls=True)


def watch_fsdp2(census: Any) -> list[Callable[[], None]]:
    """Name what FSDP2 allocates, and mark its reductions."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    def gradients(group: Any, *_: Any) -> Iterator[Any]:
        whole = (p._unsharded_param for p in group.fsdp_params if hasattr(p, "_unsharded_param"))
        return (p.grad for p in whole if p.grad is not None)

    census.label_sites(FSDP2_SITES)
    return [
        census.mark_calls(_fsdp_param_group, "foreach_reduce", "reduce"),
        census.own_before(_fsdp_param_group.FSDPParamGroup, "post_backward", "gradients", gradients),
    ]


def _mesh(run: Run, device: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    if run.strategy.sharding == "hybrid-shard":
        return init_device_mesh(device, (run.ranks // run.shards, run.shards), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(device, (run.ranks,))


def _units(model: Any, run: Run) -> list[Any]:
    """Modules that the ``wrap`` knob makes units of their own, in the order of forward."""
    wrap = run.settings.knobs["wrap"]
    names = {part.class_name for part in run.model.blocks} if wrap != "none" else set()
    blocks = [m for m in model.modules() if type(m).__name__ in names]
    before = [model.get_input_embeddings()] if wrap in ("blocks+embedding", "blocks+embedding+head") else []
    alone = wrap == "blocks+embedding+head" and run.strategy.engine == "fsdp1"
    return [*before, *blocks, *([model.get_output_embeddings()] if alone else [])]


def _tail(model: Any, run: Run) -> list[Any]:
    """Final norm and head, which FSDP2 can hold in one unit (accelerate: fsdp2_prepare_model)."""
    if run.settings.knobs["wrap"] != "blocks+embedding+head":
        return []
    parts = run.model.parts
    last = max(at for at, part in enumerate(parts) if part.is_block)
    names = dict.fromkeys(p.name.rpartition(".")[0] for part in parts[last + 1 :] for p in part.parameters)
    return [model.get_submodule(name) for name in names]


# -- FSDP1 -----------------------------------------------------------------------------------------------------------


FSDP1_SITES = {
    "_flat_param.py:init_flat_param_attributes": "params",
    "_flat_param.py:flatten_tensors": "params",
    "_flat_param.py:_get_shard": "params",
    "_runtime_utils.py:_get_reduce_scatter_tensors": "buffers",  # becomes a gradient when nothing is cast
    "_runtime_utils.py:_post_backward_hook": "buffers",
    "_runtime_utils.py:_cast_grad_to_param_dtype": "gradients",
}


def watch_fsdp1(census: Any) -> list[Callable[[], None]]:
    """Name what FSDP1 allocates, and mark its reductions."""
    from torch.distributed.fsdp import _runtime_utils

    def flat_gradients(state: Any, handle: Any, *_: Any) -> list[Any]:
        return [handle.flat_param.grad]

    census.label_sites(FSDP1_SITES)
    return [
        census.own_before(_runtime_utils, "_post_backward_reshard", "gradients", flat_gradients),
        census.mark_calls(_runtime_utils, "_post_backward_hook", "reduce"),
    ]


def _fsdp1(model: Any, run: Run, census: Any) -> TorchEngine:
    from torch.distributed import fsdp

    settings, knobs, device = run.settings, run.settings.knobs, device_of(model, run)
    sharding = {
        "full-shard": fsdp.ShardingStrategy.FULL_SHARD,
        "shard-grad-op": fsdp.ShardingStrategy.SHARD_GRAD_OP,
        "hybrid-shard": fsdp.ShardingStrategy.HYBRID_SHARD,
        "no-shard": fsdp.ShardingStrategy.NO_SHARD,
    }[run.strategy.sharding]
    prefetch = {"pre": fsdp.BackwardPrefetch.BACKWARD_PRE, "post": fsdp.BackwardPrefetch.BACKWARD_POST}
    units = {id(m) for m in _units(model, run)}
    if run.workload.has_adapters:  # as peft's fsdp_auto_wrap_policy does
        units |= {
            id(m) for m in model.modules() if not list(m.children()) and any(p.requires_grad for p in m.parameters())
        }
        if run.workload.stack == "torch":  # as the script does: these compute in 16 bit whatever their shards are
            for module in model.modules():
                module.cast_input_dtype_enabled = False
    made = fsdp.FullyShardedDataParallel(
        model,
        sharding_strategy=sharding,
        auto_wrap_policy=fsdp.wrap.CustomPolicy(lambda module: id(module) in units),
        mixed_precision=fsdp.MixedPrecision(dtype(settings.compute_dtype), dtype(settings.reduce_dtype)),
        backward_prefetch=prefetch.get(str(knobs["backward_prefetch"])),
        forward_prefetch=bool(knobs["forward_prefetch"]),
        limit_all_gathers=bool(knobs["limit_all_gathers"]),
        use_orig_params=bool(knobs["use_orig_params"]),
        device_id=device,
        cpu_offload=fsdp.CPUOffload(offload_params=True) if run.strategy.params and device.type == "cuda" else None,
        device_mesh=_mesh(run, device.type) if run.strategy.sharding == "hybrid-shard" else None,
    )

    def micro_step(last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last or knobs["sync_each_batch"] else made.no_sync()

    undo = watch_fsdp1(census)
    return TorchEngine(made, lambda: list(made.parameters()), micro_step, undo=undo, reduces_in_calls=True)
