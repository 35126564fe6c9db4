"""``simulate``: the real engine at the real size, in one process, without a GPU."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from estimators.run import Run
from validate.depth import at_depth, depth_of, period_of
from validate.simulate.fold import Depth, NotFoldable, folded
from validate.simulate.moments import Composition, instants_of
from validate.simulate.network import needy_ranks
from validate.simulate.run import Measured, measure

FOLDED_ENGINES = ("torch", "ddp", "fsdp1", "fsdp2")
STEPS = 2
STEPS_STAGE_3 = 3  # records its trace in the first step, prefetches by it from the third forward on


@dataclass(frozen=True)
class Simulation:
    """What the engine held at the largest moment of each instant of its last step, and how that was found.

    ``ran``: the depths that were run; one of them is ``layers`` when nothing was folded. ``residual``: the largest
    relative error of an instant at the depth that was held out, None when nothing was folded.
    """

    layers: int
    instants: Mapping[str, Composition]
    ran: tuple[int, ...]
    residual: float | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    rss_bytes: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def peak(self) -> str:
        """The instant that needs most of the GPU."""
        return max(self.instants, key=lambda name: self.instants[name].total)

    @property
    def allocated(self) -> int:
        """Bytes of the GPU at that instant."""
        return self.instants[self.peak].total


def simulate(run: Run, *, layers: int | None = None, steps: int | None = None, fold: bool | None = None) -> Simulation:
    """Run the engine of ``run`` under fake tensors inside a fake process group of its size.

    ``layers``: blocks of the deepest stack (None: all). ``fold``: run a few depths and extend them (None: where the
    engine allows it and it saves time). Raises ``NotImplementedError`` for what cannot be simulated, in words.
    """
    started, cpu = time.monotonic(), time.process_time()
    full = depth_of(run.model)
    steps = steps or (STEPS_STAGE_3 if run.strategy.stage == 3 else STEPS)
    depths = _depths(run)
    notes: tuple[str, ...] = ()
    found: Simulation | None = None
    if layers is None and fold is not False and run.strategy.engine in FOLDED_ENGINES and sum(depths) < full:
        try:
            found = _fold([measure(run, depth, steps) for depth in depths], full)
        except NotFoldable as reason:
            notes = (f"ran whole, not folded: {reason}",)
    if found is None:
        found = _whole(run, layers or full, steps)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Simulation(
        found.layers, found.instants, found.ran, found.residual, time.monotonic() - started,
        time.process_time() - cpu, used, notes,
    )  # fmt: skip


def _depths(run: Run) -> tuple[int, int, int]:
    """Three depths: enough blocks that one in the middle has neighbours on both sides, whole periods apart."""
    period = period_of(run.model)
    start = 3 + (-3) % period
    return start, start + period, start + 2 * period


def _whole(run: Run, layers: int, steps: int) -> Simulation:
    """Every block; of each instant the rank that needs most of the GPU."""
    runs = [measure(run, layers, steps, rank) for rank in needy_ranks(at_depth(run, layers))]
    instants = {name: max((r.instants[name] for r in runs), key=lambda c: c.total) for name in runs[0].instants}
    return Simulation(layers, instants, (layers,))


def _fold(runs: list[Measured], full: int) -> Simulation:
    instants, residual = folded(*(Depth(run.layers, run.traces) for run in runs), full)
    return Simulation(full, instants_of(instants), tuple(run.layers for run in runs), residual)
