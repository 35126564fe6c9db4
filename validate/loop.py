"""A few optimizer steps on synthetic data; what was alive at the largest moment of each instant of the last one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimators.activations.question import HOLDS_OUTPUTS
from estimators.run import Run
from validate.cells.torch_engines import _tail
from validate.census import without_collector
from validate.device import Device, host_rss_bytes
from validate.engine import build_engine
from validate.model import build
from validate.recorder import Recorder, Window
from validate.simulate.batches import batch
from validate.simulate.categories import Categories
from validate.simulate.engines import Engine
from validate.simulate.moments import largest_moments, traces
from validate.simulate.network import head

STEPS = 3  # the last is read: stage 3 prefetches from the third forward on, DDP rebuilds its buckets in the second
TIMED = 3  # more steps without the census, on devices with an allocator of their own


@dataclass(frozen=True)
class Taken:
    """What one rank found. ``instants``: instant -> place -> category -> bytes; ``windows``: the device's counters."""

    instants: Mapping[str, Mapping[str, Mapping[str, int]]]
    windows: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    sites: Mapping[str, tuple[tuple[str, str, int], ...]] = field(default_factory=dict)
    process_bytes: int | None = None
    rss_bytes: int = 0
    step_seconds: float | None = None
    notes: tuple[str, ...] = ()

    def held_bytes(self, instant: str) -> int:
        """On the device: what the census knows, or the allocator's counter where that is more."""
        counted = self.windows.get(instant, {}).get("allocated_bytes")
        return max(counted or 0, sum(self.instants[instant]["gpu"].values()))


def take(
    run: Run,
    mode: str,
    device: Device | None = None,
    config: Mapping[str, Any] | None = None,
    notice: Callable[[str], None] = lambda phase: None,
    yaml: Path | None = None,
    categories: dict[int, str] | None = None,
) -> Taken:
    """Train this rank of ``run`` for a few steps. The process group exists already.

    ``device`` None is this process's CPU, watched by the census in every step. A device with counters is watched by
    them alone in steps that run as a user's would; one step under the census then says what the bytes were.
    ``categories`` is filled with the category of each address on a card.
    """
    recorder = Recorder(device, notice)
    has_counters = recorder.device.counts
    seconds: list[float] = []
    windows: dict[str, Window] = {}
    models: list[Any] = []

    def made() -> Any:
        models.append(_placed(run, recorder.device))
        return models[0]

    with without_collector():
        with recorder:
            recorder.begin("build")
            engine = build_engine(made, run, recorder, mode, config, yaml)
            unmark = _mark_loss(models[0], run, recorder)
        try:
            if has_counters:
                for _ in range(STEPS + TIMED):
                    started = recorder.device.seconds()
                    recorder.new_step()
                    _step(engine, run, recorder)
                    seconds.append(recorder.device.seconds() - started)
                windows = dict(recorder.windows)
            for _ in range(1 if has_counters else STEPS):
                recorder.new_step()
                with recorder:
                    _step(engine, run, recorder)
                gc.collect()
        finally:
            unmark()
            engine.close()
        names = Categories.of(recorder, run)
    if categories is not None:
        categories.update({address: names(block, "") for block, address in recorder.addresses.items()})
    instants = largest_moments(recorder, names, traces(recorder, names))
    return Taken(
        {name: {"gpu": dict(c.gpu), "host": dict(c.host)} for name, c in instants.items()},
        _counted(windows),
        {name: c.sites for name, c in instants.items()},
        recorder.device.process(),
        host_rss_bytes(),
        min(seconds[-TIMED:]) if seconds else None,
    )


def largest(found: Sequence[Taken]) -> Taken:
    """Ranks as one: of each instant the one that needs most of the device, of the rest the largest."""
    best = {name: max(found, key=lambda taken: taken.held_bytes(name)) for name in found[0].instants}
    return Taken(
        {name: taken.instants[name] for name, taken in best.items()},
        {name: taken.windows[name] for name, taken in best.items() if name in taken.windows},
        {name: taken.sites[name] for name, taken in best.items()},
        max((t.process_bytes for t in found if t.process_bytes), default=None),
        max(t.rss_bytes for t in found),
        max((t.step_seconds for t in found if t.step_seconds), default=None),
        tuple(dict.fromkeys(note for t in found for note in t.notes)),
    )


def _placed(run: Run, device: Device) -> Any:
    """The network, on the device where the script would put it: offloaded parameters of FSDP stay on the host."""
    import torch

    stays = bool(run.strategy.params) and run.strategy.engine in ("fsdp1", "fsdp2")
    where = "cpu" if stays else device.type
    with torch.device(where) if device.counts else nullcontext():
        return build(run, where)


def _mark_loss(model: Any, run: Run, recorder: Recorder) -> Callable[[], None]:
    """The loss begins with the head, or with the unit that the head is in: before the engine gathers it."""
    tail = _tail(model, run) if run.strategy.engine == "fsdp2" else []
    module = tail[0] if tail else head(model)
    if module is None:
        return lambda: None
    return module.register_forward_pre_hook(lambda *_: recorder.begin("loss"), prepend=True).remove  # type: ignore[no-any-return]


def _step(engine: Engine, run: Run, recorder: Recorder) -> None:
    micro_steps = run.workload.grad_accum
    holds = run.workload.stack in HOLDS_OUTPUTS  # a usual loop of this stack has a name for them until the next step
    counts_itself = run.strategy.engine == "deepspeed"  # its step knows when accumulation is complete
    for micro in range(micro_steps):
        last = micro == micro_steps - 1
        data = {name: tensor.to(recorder.device.type) for name, tensor in batch(run).items()}
        recorder.own("activations", data.values())
        with engine.micro_step(last):
            recorder.begin("forward")
            outputs = engine.forward(data)
            loss = outputs.loss
            if not holds:
                del outputs
            engine.label()
            recorder.begin("backward")
            engine.backward(loss)
            del loss
        engine.label()
        if last or counts_itself:
            recorder.begin("step")
            engine.step()
            engine.label()
            recorder.begin("between")
    recorder.end()


def _counted(windows: Mapping[str, Window]) -> dict[str, dict[str, int | None]]:
    """Counters by instant of the contract: loading is the larger of its two pieces."""
    pieces = {name: w for name, w in windows.items() if name not in ("build", "start", "between")}
    loads = [windows[name] for name in ("build", "start") if name in windows]
    if loads:
        pieces["load"] = max(loads, key=lambda w: w.allocated)
    return {name: {"allocated_bytes": w.allocated, "reserved_bytes": w.reserved} for name, w in pieces.items()}
