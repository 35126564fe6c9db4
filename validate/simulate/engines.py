"""Engines of a simulated run behind one small face: ``forward``, ``backward``, ``step``, ``label``.

Engines are built by the same functions that build them over gloo (``validate.cells``). DDP's reducer is C++: here a
communication hook answers in place of the collective, and buckets are not rebuilt in the order in which gradients arrived
(the new buckets would be real memory); their total is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily

from estimators.run import Run
from validate.cells.torch_engines import TorchEngine, wrapped
from validate.optimizers import optimizer_of
from validate.simulate.ledger import REDUCE, Ledger

OPTIMIZERS = ("adamw", "adamw-fused", "sgd", "sgd-momentum")


@dataclass
class Engine:
    """What the loop needs of an engine. ``label`` names what the engine owns at this moment."""

    forward: Callable[[Mapping[str, Any]], Any]
    backward: Callable[[Any], None]
    step: Callable[[], None]
    label: Callable[[], None]
    micro_step: Callable[[bool], AbstractContextManager[Any]] = field(default=lambda last: nullcontext())
    short: Callable[[Mapping[str, Any]], Any] | None = None  # a forward without the network, for steps nobody looks at
    update: Callable[[], None] | None = None  # a step on the gradients that are there, without forward and backward
    close: Callable[[], None] = field(default=lambda: None)


def build_engine(model: torch.nn.Module, run: Run, ledger: Ledger) -> Engine:
    """The engine of a run's strategy around a model of fake tensors."""
    ledger.own("params", model.parameters())
    ledger.own("buffers", model.buffers())
    if run.strategy.engine == "deepspeed":
        return _deepspeed(model, run, ledger)
    return _torch(
        _ddp(model, run, ledger) if run.strategy.engine == "ddp" else _wrapped(model, run, ledger), run, ledger
    )


# -- torch -----------------------------------------------------------------------------------------------------------


def _wrapped(model: torch.nn.Module, run: Run, ledger: Ledger) -> TorchEngine:
    with unset_fake_temporarily():  # device meshes look into their own tensors
        return wrapped(model, run, ledger)


def _torch(engine: TorchEngine, run: Run, ledger: Ledger) -> Engine:
    module = engine.module
    optimizer = _optimizer([p for p in module.parameters() if p.requires_grad], run)
    offloaded = bool(run.strategy.params)

    def forward(batch: Mapping[str, Any]) -> Any:
        with engine.forward_context():
            return module(**batch).loss

    def step() -> None:
        optimizer.step()
        label()
        optimizer.zero_grad(set_to_none=True)

    def label() -> None:
        for name, tensors in engine.owned(optimizer):
            ledger.own(name, tensors)
            if offloaded:
                ledger.place_on_host(tensors)

    return Engine(forward, lambda loss: loss.backward(), step, label, engine.micro_step, close=engine.close)


def _optimizer(parameters: list[Any], run: Run) -> Any:
    name = run.settings.optimizer
    if name not in OPTIMIZERS:
        raise NotImplementedError(
            f"optimizer {name} cannot be simulated; {', '.join(OPTIMIZERS[:-1])} and {OPTIMIZERS[-1]} can"
        )
    return optimizer_of(parameters, run)


class _Reducer:
    """DDP's reducer without the rebuilding of buckets."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def _rebuild_buckets(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)


def _ddp(model: torch.nn.Module, run: Run, ledger: Ledger) -> TorchEngine:
    # it compares the shapes of ranks, of which there is one
    with patch("torch.nn.parallel.distributed._verify_param_shape_across_processes"):
        engine = wrapped(model, run, ledger)

    def reduced(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        with ledger.region(REDUCE):
            buffer = bucket.buffer()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(buffer)
        return future

    reduced.__annotations__.update(bucket=dist.GradBucket, **{"return": torch.futures.Future[torch.Tensor]})
    engine.module.register_comm_hook(None, reduced)
    engine.module.reducer = _Reducer(engine.module.reducer)
    return engine


# -- DeepSpeed -------------------------------------------------------------------------------------------------------

# Attributes of DeepSpeed's optimizers that lie in host RAM when the optimizer is offloaded.
ON_HOST = (
    "single_partition_of_fp32_groups", "fp32_partitioned_groups_flat", "fp32_groups_gradients_flat",
    "accumulated_grads_in_cpu", "temp_grad_buffer_for_cpu_offload", "param_buffer_of_bit16_for_cpu_offload_groups",
    "param_groups_fp16_flat_cpu_memory", "grad_partitions_flat_buffer",
)  # fmt: skip
CUT = "partition_parameters.py:_partition_param"  # makes a parameter's shard where it will stay


def _deepspeed(model: torch.nn.Module, run: Run, ledger: Ledger) -> Engine:
    import deepspeed

    from validate.cells import deepspeed_engine as cells

    ledger.label_sites(cells.SITES)
    if run.strategy.params:
        ledger.place_site_on_host(CUT)
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, config=cells.config_of(run), model_parameters=trained)
    undo: list[Callable[[], None]] = []
    with_counters = not run.settings.optimizer_impl.startswith("ds-")  # DeepSpeed's own kernels count in Python

    def label() -> None:
        cells.label_owned(engine, ledger, with_counters)
        for tensor in _host_tensors(engine, run, cells.tensors):
            ledger.place_on_host([tensor])

    def close() -> None:
        for action in undo:
            action()
        engine.destroy()
        cells.forget()

    def backward(loss: Any) -> None:
        engine.backward(loss)

    label()
    undo.extend(cells.watch(engine, ledger))
    made = Engine(lambda batch: engine(**batch).loss, backward, engine.step, label, close=close)
    if run.strategy.stage == 3:
        made.update = lambda: _update(engine)
    else:
        made.short = lambda batch: _short(engine)
    return made


class _AllParameters(torch.autograd.Function):
    """A number that every parameter has a gradient for."""

    @staticmethod
    def forward(ctx: Any, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*parameters)
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty_like(p) for p in ctx.saved_tensors)


def _short(engine: Any) -> Any:
    """The engine's forward around a network that is one operation: what follows is the engine's own code."""
    trained = [p for p in engine.module.parameters() if p.requires_grad]
    engine.module.forward = lambda: {"loss": _AllParameters.apply(*trained)}
    try:
        return engine()["loss"]
    finally:
        del engine.module.forward


def _update(engine: Any) -> None:
    """Stage 3 keeps its gradients' partitions from the start: its optimizer may step on them as they are."""
    engine.optimizer.independent_gradient_partition_epilogue()
    engine.optimizer.step()


def _host_tensors(engine: Any, run: Run, tensors: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
    optimizer = engine.optimizer
    if run.strategy.optimizer:
        for name in ON_HOST:
            for tensor in tensors(getattr(optimizer, name, None)):
                yield tensor
                if tensor.is_leaf and tensor.grad is not None:
                    yield tensor.grad
        yield from tensors(dict(getattr(optimizer, "optimizer", optimizer).state))
    if run.strategy.params:
        for parameter in engine.module.parameters():
            if getattr(parameter, "ds_tensor", None) is not None:
                yield parameter.ds_tensor
        yield from tensors(getattr(optimizer, "param_groups_fp16_flat_cpu_memory", None))
