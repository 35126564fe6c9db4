"""``simulate``: the real engine at the real size, in one process, without a GPU."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy

from estimators.engines.zero_leaves import leaf_in
from estimators.model.spec import Part
from estimators.run import Run
from estimators.workload import DTYPE_BYTES
from validate.cells.deepspeed_engine import on_cpu
from validate.depth import at_depth, depth_of, period_of
from validate.simulate.fold import Depth, NotFoldable, folded
from validate.simulate.moments import Composition, instants_of
from validate.simulate.network import needy_ranks
from validate.simulate.run import Measured, measure
from validate.simulate.side_by_side import side_by_side

FOLDED_ENGINES = ("torch", "ddp", "fsdp1", "fsdp2")  # and ZeRO-3; stages 0 to 2 run whole, and need not the time
FOLDED_STAGE_3 = ("forward", "loss", "backward", "reduce")  # loading and the step: the engine itself at full depth
STAGE_3_LIMITS = ("max_live_parameters", "max_reuse_distance", "prefetch_bucket_size")
STEPS = 2
STEPS_STAGE_3 = 3  # records its trace in the first step, prefetches by it from the third forward on


@dataclass(frozen=True)
class Simulation:
    """What the engine held at the largest moment of each instant of its last step, and how that was found.

    ``ran``: the depths that were run; one of them is ``layers`` when nothing was folded. ``residual``: the largest
    relative error of an instant at the depth that was held out, None when nothing was folded. ``rss_bytes``: of the
    largest process, which shares with the others what it imported.
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
    started, cpu = time.monotonic(), _cpu_seconds()
    both = 2 * run.model.num_params * DTYPE_BYTES[run.settings.compute_dtype]  # parameters, and the flat copy of them
    if run.strategy.stage in (1, 2) and run.strategy.optimizer and both > run.cluster.gpu.memory_bytes:
        raise NotImplementedError(
            "DeepSpeed flattens these parameters in host RAM: two copies do not fit the GPU, and the CPU that stands for "
            "it here cannot tell the two places apart"
        )
    full = depth_of(run.model)
    steps = steps or (STEPS_STAGE_3 if run.strategy.stage == 3 else STEPS)
    depths = _depths(run)
    notes: tuple[str, ...] = ()
    found: Simulation | None = None
    if run.strategy.engine == "deepspeed":  # once, before processes are forked
        on_cpu()
    folds = run.strategy.engine in FOLDED_ENGINES or run.strategy.stage == 3
    # a refusal costs what was run for nothing: stage 3 folds where that is little, or where it is asked to
    worth = sum(depths) * (2 if run.strategy.stage == 3 and not fold else 1) < full
    if layers is None and fold is not False and folds and worth:
        try:
            extend = _fold_stage_3 if run.strategy.stage == 3 else _fold
            found = extend(run, depths, steps, full)
        except NotFoldable as reason:
            notes = (f"ran whole, not folded: {reason}",)
    if found is None:
        found = _whole(run, layers or full, steps)
    used = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) * 1024
    return Simulation(
        found.layers, found.instants, found.ran, found.residual, time.monotonic() - started,
        _cpu_seconds() - cpu, used, notes,
    )  # fmt: skip


def _depths(run: Run) -> tuple[int, int, int]:
    """Three depths: enough blocks that one in the middle has neighbours on both sides, whole periods apart.

    Stage 3 keeps blocks gathered up to a number of parameters: so many more, until it gives one back for each it takes.
    """
    period = period_of(run.model)
    start = 3
    if run.strategy.stage == 3:
        limits = max(int(run.settings.knobs[name] or 0) for name in STAGE_3_LIMITS)
        start = 2 + -(-limits // min(_counted(block) for block in run.model.blocks))
    start += -start % period
    return start, start + period, start + 2 * period


def _counted(block: Part) -> int:
    """Elements that the coordinator counts as it looks ahead: of modules that it takes whole (mixtures), none."""
    whole = leaf_in(block)
    return max(sum(p.numel for p in block.parameters if not whole or not p.name.startswith(f"{whole}.")), 1)


def _whole(run: Run, layers: int, steps: int) -> Simulation:
    """Every block; of each instant the rank that needs most of the GPU."""
    runs = side_by_side([partial(measure, run, layers, steps, rank) for rank in needy_ranks(at_depth(run, layers))])
    instants = {name: max((r.instants[name] for r in runs), key=lambda c: c.total) for name in runs[0].instants}
    return Simulation(layers, instants, (layers,))


def _fold_stage_3(run: Run, depths: Sequence[int], steps: int, full: int) -> Simulation:
    """The network's instants from three depths; loading and the step from the engine at full depth without a network.

    What the engine partitions by itself has steps (sub-groups) and is never extended: its own code runs on all the
    shapes. What a step with a network holds beside that must be the same at every depth, or lie on one line.
    """
    alone_at = (full, *depths[::-1])  # the longest first
    calls = [partial(measure, run, depth, STEPS, network=False) for depth in alone_at]
    calls += [partial(measure, run, depth, steps) for depth in depths]
    made = side_by_side(calls)
    alone, runs = made[: len(alone_at)][::-1], made[len(alone_at) :]
    instants, residual = folded(
        *(Depth(r.layers, {name: r.traces[name] for name in FOLDED_STAGE_3}) for r in runs), full
    )
    beside = [_step_of(r) - _step_of(a) for r, a in zip(runs, alone, strict=False)]
    slope = (beside[1] - beside[0]) / (depths[1] - depths[0])
    if (beside[0] + slope * (depths[2] - depths[0]) != beside[2]).any():
        raise NotFoldable("step: what it holds beside the engine's own tensors is on no line")
    loaded = ("build", "start")
    at_full = {name: Composition.of(a.bytes[a.largest]) for name in loaded for a in (alone[-1].traces[name],)}
    at_full["step"] = Composition.of(_step_of(alone[-1]) + beside[0] + slope * (full - depths[0]))
    instants = {name: {**instants, **at_full}[name] for name in runs[0].traces}
    return Simulation(full, instants_of(instants), tuple(depths), residual)


def _step_of(run: Measured) -> numpy.ndarray:
    """Categories at the largest moment of the step."""
    trace = run.traces["step"]
    return trace.bytes[trace.largest]


def _fold(run: Run, depths: Sequence[int], steps: int, full: int) -> Simulation:
    runs = side_by_side([partial(measure, run, depth, steps) for depth in reversed(depths)])[::-1]
    instants, residual = folded(*(Depth(one.layers, one.traces) for one in runs), full)
    return Simulation(full, instants_of(instants), tuple(depths), residual)


def _cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
