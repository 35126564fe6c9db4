"""One simulated run: build, train a few steps, read the last one."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import Any

import torch

from estimators.run import Run
from estimators.workload import DTYPE_BYTES
from validate.census import without_collector
from validate.depth import at_depth, depth_of
from validate.simulate.batches import batch, known_values
from validate.simulate.categories import Categories
from validate.simulate.engines import Engine, build_engine
from validate.simulate.ledger import Ledger
from validate.simulate.moments import Composition, Trace, largest_moments, traces
from validate.simulate.network import build, head, with_fp32_outputs
from validate.simulate.world import fake_world


@dataclass(frozen=True)
class Measured:
    """What one depth gave: the largest moment of each instant, and all moments for whoever folds."""

    layers: int
    instants: dict[str, Composition]
    traces: dict[str, Trace]
    seconds: float


def measure(
    run: Run, layers: int | None = None, steps: int = 2, rank: int = 0, network: bool = True, short: bool = True
) -> Measured:
    """Run a rank of the real engine on fake tensors, ``layers`` blocks deep (None: all); read the last of ``steps``.

    Without ``network`` there is no forward and no backward: only loading and the optimizer's step, where the engine
    can (``Engine.update``). ``short``: steps before the last, which only make states, may leave the network out.
    """
    started = time.monotonic()
    layers = layers or depth_of(run.model)
    run = at_depth(run, layers)
    free = run.cluster.gpu.memory_bytes - run.model.num_params * DTYPE_BYTES[run.settings.compute_dtype]
    fake_ranks = fake_world(run.ranks, run.cluster.gpus_per_node, run.strategy.engine, rank, free)
    with without_collector(), known_values(run), fake_ranks as fake, fake, Ledger() as ledger:
        ledger.begin("build")
        model = with_fp32_outputs(build(run), run)
        ledger.begin("start")
        engine = build_engine(model, run, ledger)
        hook = _mark_loss(model, ledger)
        ledger.begin("between")
        try:
            for step in range(steps):
                if network:
                    _step(engine, run, ledger, whole=not short or step == steps - 1)
                else:
                    _update(engine, ledger)
                gc.collect()
        finally:
            if hook is not None:
                hook.remove()
            engine.close()
        names = Categories.of(ledger, run)
    found = traces(ledger, names)
    return Measured(layers, largest_moments(ledger, names, found), found, time.monotonic() - started)


def _mark_loss(model: torch.nn.Module, ledger: Ledger) -> Any:
    """The loss begins with the head: before the engine gathers it."""
    module = head(model)
    if module is None:
        return None
    return module.register_forward_pre_hook(lambda *_: ledger.begin("loss"), prepend=True)


def _update(engine: Engine, ledger: Ledger) -> None:
    if engine.update is None:
        raise NotImplementedError("this engine cannot step without a backward")
    for phase in ("forward", "loss", "backward", "step"):
        ledger.begin(phase)
    engine.update()
    engine.label()
    ledger.begin("between")


def _step(engine: Engine, run: Run, ledger: Ledger, whole: bool) -> None:
    micro_steps = run.workload.grad_accum
    counts_itself = run.strategy.engine == "deepspeed"  # its step knows when accumulation is complete
    for micro in range(micro_steps):
        last = micro == micro_steps - 1
        data = batch(run)
        ledger.own("activations", data.values())
        with engine.micro_step(last):
            ledger.begin("forward")
            loss = engine.forward(data) if whole or engine.short is None else engine.short(data)
            engine.label()
            ledger.begin("backward")
            engine.backward(loss)
            del loss
        engine.label()
        if last or counts_itself:
            ledger.begin("step")
            engine.step()
            engine.label()
            ledger.begin("between")
