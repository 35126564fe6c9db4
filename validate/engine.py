"""Engines of a real run behind one small face: ``forward``, ``backward``, ``step``, ``label``.

DeepSpeed is started with the JSON of the folder; the torch engines are built by the functions that build the cells.
In a fake process group DDP's reducer, which is C++, gets a hook in place of its collective, as in a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from estimators.run import Run
from validate.cells.torch_engines import TorchEngine, wrapped
from validate.optimizers import optimizer_of
from validate.recorder import Recorder
from validate.simulate.engines import Engine, _ddp, _host_tensors

Build = Callable[[], torch.nn.Module]


def build_engine(build: Build, run: Run, recorder: Recorder, mode: str, config: Mapping[str, Any] | None) -> Engine:
    """The engine of a run's strategy around the model that ``build`` makes. ``config``: the DeepSpeed JSON, settled."""
    if run.strategy.engine == "deepspeed":
        return _deepspeed(build, run, recorder, dict(config or {}))
    model = build()
    recorder.own("params", model.parameters())
    recorder.own("buffers", model.buffers())
    recorder.begin("start")
    is_alone = run.strategy.engine == "ddp" and mode == "rehearse"
    return _torch(_ddp(model, run, recorder) if is_alone else wrapped(model, run, recorder), run, recorder)


def _torch(engine: TorchEngine, run: Run, recorder: Recorder) -> Engine:
    module = engine.module
    optimizer = optimizer_of((p for p in module.parameters() if p.requires_grad), run)
    offloaded = bool(run.strategy.params)

    def forward(batch: Mapping[str, Any]) -> Any:
        with engine.forward_context():
            return module(**batch).loss

    def step() -> None:
        optimizer.step()
        label()
        optimizer.zero_grad(set_to_none=True)

    def label() -> None:
        # a unit that is not resharded has its gathered parameters in place of its shards
        stored = [getattr(p, "_local_tensor", p) for p in module.parameters()]
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        states = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
        for name, tensors in (("params", stored), ("gradients", gradients), ("optimizer", states)):
            recorder.own(name, tensors)
            if offloaded:
                recorder.place_on_host(tensors)

    return Engine(forward, lambda loss: loss.backward(), step, label, engine.micro_step, engine.close)


def _deepspeed(build: Build, run: Run, recorder: Recorder, config: dict[str, Any]) -> Engine:
    import deepspeed

    from validate.cells import deepspeed_engine as cells

    with deepspeed.zero.Init(config_dict_or_path=config) if run.settings.knobs.get("zero_init") else nullcontext():
        model = build()
    recorder.own("params", (p.data for p in model.parameters()))
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
        for tensor in _host_tensors(engine, run, cells.tensors):
            recorder.place_on_host([tensor])

    def close() -> None:
        for action in undo:
            action()
        engine.destroy()
        cells.forget()

    label()
    undo.extend(cells.watch(engine, recorder))
    return Engine(lambda batch: engine(**batch).loss, engine.backward, engine.step, label, close=close)
