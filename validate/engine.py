"""Engines of a real run behind one small face: ``forward``, ``backward``, ``step``, ``label``.

DeepSpeed is started with the JSON of the folder; the torch engines are built by the functions that build the cells.
In a fake process group DDP's reducer, which is C++, gets a hook in place of its collective, as in a simulation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from estimators.run import Run
from validate.accelerate_yaml import environment, upcast, upcast_flat
from validate.cells.torch_engines import TorchEngine, watch_fsdp1, watch_fsdp2, wrapped
from validate.model import side_tensors
from validate.optimizers import optimizer_of
from validate.recorder import Recorder
from validate.simulate.engines import Engine, _ddp

Build = Callable[[], torch.nn.Module]


def build_engine(
    build: Build, run: Run, recorder: Recorder, mode: str, config: Mapping[str, Any] | None, yaml: Path | None = None
) -> Engine:
    """The engine of a run's strategy around the model that ``build`` makes.

    ``config``: the DeepSpeed JSON, settled. ``yaml``: accelerate builds the engine from this file, on GPUs; elsewhere
    ``run`` is what accelerate read, and the few things are done here that accelerate does to a model.
    """
    if run.strategy.engine == "deepspeed":
        return _deepspeed(build, run, recorder, dict(config or {}))
    model = build()
    recorder.own("params", [*model.parameters(), *side_tensors(model)])
    recorder.own("buffers", model.buffers())
    recorder.begin("start")
    if yaml is not None and mode == "gpu":
        return _accelerated(model, run, recorder, yaml)
    upcasts = yaml is not None and run.workload.precision.endswith("-mixed")
    if upcasts and run.strategy.engine == "fsdp2":
        upcast(model)
        recorder.own("params", model.parameters())
    is_alone = run.strategy.engine == "ddp" and mode == "rehearse"
    engine = _ddp(model, run, recorder) if is_alone else wrapped(model, run, recorder)
    if upcasts and run.strategy.engine == "fsdp1":
        upcast_flat(engine.module)
    return _torch(engine, run, recorder)


def _accelerated(model: torch.nn.Module, run: Run, recorder: Recorder, yaml: Path) -> Engine:
    """``Accelerator`` does what the user's script asks of it: model and optimizer are prepared together."""
    from accelerate import Accelerator

    os.environ.update(environment(yaml))
    accelerator = Accelerator()
    watch: dict[str, Callable[[Any], list[Callable[[], None]]]] = {"fsdp1": watch_fsdp1, "fsdp2": watch_fsdp2}
    undo = watch[run.strategy.engine](recorder) if run.strategy.engine in watch else []
    optimizer = optimizer_of((p for p in model.parameters() if p.requires_grad), run)
    module, optimizer = accelerator.prepare(model, optimizer)

    def micro_step(last: bool) -> AbstractContextManager[Any]:
        syncs = last or bool(run.settings.knobs["sync_each_batch"])
        return nullcontext() if syncs else accelerator.no_sync(module)  # type: ignore[no-any-return]

    engine = TorchEngine(module, lambda: list(module.parameters()), micro_step, undo=undo)
    return _torch(engine, run, recorder, optimizer.optimizer, accelerator.backward)


def _torch(
    engine: TorchEngine, run: Run, recorder: Recorder, made: Any = None, backward: Callable[[Any], None] | None = None
) -> Engine:
    module = engine.module
    optimizer = made or optimizer_of((p for p in module.parameters() if p.requires_grad), run)

    def forward(batch: Mapping[str, Any]) -> Any:
        with engine.forward_context():
            return module(**batch)

    def step() -> None:
        optimizer.step()
        label()
        optimizer.zero_grad(set_to_none=True)

    def label() -> None:
        for name, tensors in engine.owned(optimizer):
            recorder.own(name, tensors)

    return Engine(
        forward, backward or (lambda loss: loss.backward()), step, label, engine.micro_step, close=engine.close
    )


def _deepspeed(build: Build, run: Run, recorder: Recorder, config: dict[str, Any]) -> Engine:
    import deepspeed

    from validate.cells import deepspeed_engine as cells

    linear = torch.nn.functional.linear  # stage 3 puts its own in place of it for good
    with deepspeed.zero.Init(config_dict_or_path=config) if run.settings.knobs.get("zero_init") else nullcontext():
        model = build()
    recorder.own("params", [*(p.data for p in model.parameters()), *side_tensors(model)])
    recorder.own("params", (getattr(p, "ds_tensor", None) for p in model.parameters()))
    recorder.own("buffers", model.buffers())
    recorder.begin("start")
    recorder.label_sites(cells.SITES)
    trained = [p for p in model.parameters() if p.requires_grad]
    asked: dict[str, Any] = {"model": model, "config": config, "model_parameters": trained}
    if "optimizer" not in config:
        asked["optimizer"] = optimizer_of(trained, run)
    engine, *_ = deepspeed.initialize(**asked)
    undo: list[Callable[[], None]] = []
    with_counters = not run.settings.optimizer_impl.startswith("ds-")  # DeepSpeed's own kernels count in Python

    def label() -> None:
        cells.label_owned(engine, recorder, with_counters)

    def close() -> None:
        for action in undo:
            action()
        engine.destroy()
        torch.nn.functional.linear = linear
        cells.forget()

    label()
    undo.extend(cells.watch(engine, recorder))
    return Engine(lambda batch: engine(**batch), engine.backward, engine.step, label, close=close)
