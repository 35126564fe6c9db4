"""``validate``: question -> mode -> ranks -> report. The one place where the pieces meet."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from estimators.errors import InputError, MissingDependency, NotModelled
from estimators.memory import Estimate, resolve
from estimators.run import Run
from estimators.units import gib
from validate.causes import no_room
from validate.compare import ON_CPU, ON_GPU, compare, peak_error, status
from validate.deepspeed_json import settled
from validate.depth import at_depth, depth_of
from validate.job import Broken, Job, Task
from validate.launch import Place, Progress, launch, local
from validate.modes import Cards, cards, chosen, launched
from validate.question import Question, read
from validate.report import FILE, Failure, Report
from validate.scaling import Scaled, default_ranks, fitted, free_bytes, on_ranks

TIMEOUT = 900.0  # seconds without a sign of life from any rank
TAKEN = 0.05  # share of a card that may be in use without a word: its driver's and the probe's own context
LATER = 60.0  # seconds that a collective waits beyond that: the launcher, who sees all ranks, speaks first
PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "peft", "bitsandbytes")


@dataclass(frozen=True)
class Planned:
    """What is about to run: mode and device, the run as it was scaled, and what there is to say about it."""

    mode: str
    why: str
    device: str  # cuda, cpu or fake
    run: Run
    scaled: Scaled
    task: Task
    notes: tuple[str, ...]

    @property
    def predicted(self) -> Run:
        """The run that is estimated. A simulation keeps host and device apart by owner, as CUDA does by address."""
        strategy = self.run.strategy
        if self.mode == "simulate" and (strategy.optimizer or strategy.params):
            return resolve(self.run.model, self.run.cluster, strategy, "cuda", workload=self.run.workload)
        return self.run


def run(
    folder: str | os.PathLike[str],
    mode: str = "auto",
    *,
    nproc: int | None = None,
    layers: int | None = None,
    timeout: float = TIMEOUT,
    progress: Progress = lambda task, phase: None,
    write: bool = True,
    keep: str | os.PathLike[str] | None = None,
    snapshot: str = "",
    **question: Any,
) -> Report:
    """Validate one folder.

    ``nproc``: ranks to start here; ``layers``: run so many blocks; ``timeout``: seconds without a sign of life after
    which all is stopped; ``snapshot``: a file for the allocator's history; ``write``: put ``validation.json`` into the
    folder; ``keep``: a folder for the job's own files. The rest goes to :func:`validate.question.read`.
    """
    asked = read(os.fspath(folder), **question)
    made = plan(asked, mode, nproc, layers)
    if snapshot and made.device != "cuda":
        raise MissingDependency(f"--snapshot writes the history of a GPU's allocator; mode {made.mode} here has no GPU")
    snapshot = os.path.abspath(snapshot) if snapshot else ""
    report = answer(made, timeout, progress, Path(keep) if keep else None, snapshot)
    if (
        report.failure is not None
        and report.failure.kind == "unsupported"
        and mode == "auto"
        and made.mode == "simulate"
    ):
        again = plan(asked, "cpu", nproc, layers)
        why = f"cannot be simulated ({report.failure.reason}): the engine itself over gloo"
        report = answer(replace(again, why=why), timeout, progress, Path(keep) if keep else None, snapshot)
    return written(report, asked.folder) if write else report


# -- before ----------------------------------------------------------------------------------------------------------


def plan(asked: Question, mode: str = "auto", nproc: int | None = None, layers: int | None = None) -> Planned:
    """Which mode, on how many ranks, how large. Raises ``AdvisorError`` for what cannot be started here."""
    if nproc is not None and nproc < 1:
        raise InputError(f"--nproc {nproc}: give at least 1")
    found = cards()
    refuse(asked)
    mode, why = chosen(mode, nproc or asked.cluster.ranks, found, launched() is not None)
    device = "cuda" if mode == "gpu" or (mode == "rehearse" and found.count) else "cpu"
    run, scaled = asked.run(device), dict[str, tuple[int, int]]()
    ranks = _ranks(mode, run, nproc)
    if ranks != run.ranks:
        scaled["ranks"] = (run.ranks, ranks)
        run = on_ranks(run, ranks)
    full = depth_of(run.model)
    if layers is not None:
        if not 1 <= layers <= full:
            raise InputError(f"--layers {layers}: {run.model.name} has {full}; give 1 to {full}")
        if layers != full:
            run, scaled = at_depth(run, layers), {**scaled, "layers": (full, layers)}
    if device == "cpu" and mode != "simulate":
        processes = ranks if mode == "cpu" else 1
        run, cut = fitted(run, processes, free_bytes(), at_depth, depth_of(run.model))
        scaled |= {**cut, **({"layers": (full, cut["layers"][1])} if "layers" in cut else {})}
    config, notes = None, (*asked.notes, *(taken(found) if device == "cuda" else ()))
    if run.strategy.engine == "deepspeed" and mode != "simulate":
        config, more = settled(asked.deepspeed, run, asked.folder)
        notes = (*notes, *more)
    by_accelerate = asked.entry in ("accelerate", "trainer") and run.strategy.engine != "deepspeed"
    how = {"accelerate": str(asked.accelerate.resolve())} if by_accelerate and asked.accelerate is not None else {}
    task = Task(run, config, how)
    return Planned(mode, why, "fake" if mode == "simulate" else device, run, scaled, task, notes)


def refuse(asked: Question) -> None:
    """Raise ``NotModelled`` for settings that no mode starts here, rather than measure something else."""
    work = asked.workload
    unlike = {
        "compile": work.compile, "padding": work.padding != "none", "loss": work.loss != "plain",
        "optimizer_in_backward": bool(work.optimizer_in_backward), "attention": work.attention == "flash",
    }  # fmt: skip
    for name in (name for name, is_unlike in unlike.items() if is_unlike):
        raise NotModelled(
            f"validate does not start a run with {name} {getattr(work, name)}; leave it out to check the rest"
        )


def taken(found: Cards) -> tuple[str, ...]:
    """A note where other processes hold a part of the card before anything has started."""
    used = found.total_bytes - found.free_bytes
    if used <= TAKEN * found.total_bytes:
        return ()
    return (
        f"other processes hold {gib(used)} of the {gib(found.total_bytes)} GiB of GPU 0 already (nvidia-smi names them)",
    )


def _ranks(mode: str, run: Run, nproc: int | None) -> int:
    environment = launched() if mode == "gpu" else None
    if environment is not None:
        return environment[1]
    return nproc or (default_ranks(run) if mode == "cpu" else run.ranks)


# -- after -----------------------------------------------------------------------------------------------------------


def answer(
    made: Planned, timeout: float, progress: Progress = lambda task, phase: None, keep: Path | None = None,
    snapshot: str = "",
) -> Report:  # fmt: skip
    """Start it and judge what came back."""
    return answers([made], timeout, progress, keep, snapshot)[0]


def answers(
    made: Sequence[Planned], timeout: float, progress: Progress = lambda task, phase: None, keep: Path | None = None,
    snapshot: str = "",
) -> list[Report]:  # fmt: skip
    """Several runs of one mode and one number of ranks in one start of the ranks, one after another.

    A run that fails ends those after it: they have the same failure. Raises ``MissingDependency`` without torch.
    """
    if find_spec("torch") is None:
        raise MissingDependency(
            "validating starts the real engine, and torch is not installed: pip install 'dist-advisor[engines]'"
        )
    first = made[0]
    tasks = tuple(one.task for one in made)
    job = Job(first.mode, "cuda" if first.device == "cuda" else "cpu", tasks, first.run.ranks, timeout + LATER,
              snapshot=snapshot)  # fmt: skip
    place = _place(first)
    job = replace(job, gathers=first.mode == "gpu" and len(place.ranks) < job.ranks)
    lacking = next((why for task in tasks if first.mode != "simulate" and (why := no_room(task))), None)
    found = launch(job, place, timeout, progress, keep) if lacking is None else [[lacking] for _ in tasks]
    return [judged(one, results) for one, results in zip(made, found, strict=True)]


def _place(made: Planned) -> Place:
    environment = launched() if made.mode == "gpu" else None
    if environment is None:
        return local(made.mode, made.run.ranks)
    rank, world, local_rank, here = environment
    meet = {"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(here)}
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise InputError(
                f"started by Slurm or MPI on {world} ranks, {name} is not set; export it in the job script"
            )
    return Place((rank,), world, True, meet)


def judged(made: Planned, found: Sequence[Any]) -> Report:
    """The report of one task from what its ranks answered."""
    estimate = Estimate(made.predicted)
    common: dict[str, Any] = {
        "mode": made.mode, "strategy": made.run.strategy.name, "ranks": made.run.ranks, "device": made.device,
        "estimate": estimate, "scaled": made.scaled, "versions": _versions(), "why": made.why,
    }  # fmt: skip
    broken = next((f for f in found if isinstance(f, Broken)), None)
    if broken is not None:
        return Report(**common, status="failed", failure=Failure.of(broken, estimate), notes=made.notes)
    if made.mode == "simulate":
        measured = {name: {"gpu": c.gpu, "host": c.host} for name, c in found[0].instants.items()}
        folded = f"blocks run: {', '.join(map(str, found[0].ran))}" + (
            f", folded to {found[0].layers} with a residual of {found[0].residual:.4%}"
            if found[0].residual is not None else ""
        )  # fmt: skip
        extra: dict[str, Any] = {
            "sites": {name: c.sites for name, c in found[0].instants.items()},
            "rss_bytes": (found[0].rss_bytes,), "notes": (*made.notes, folded, *found[0].notes),
        }  # fmt: skip
    else:
        measured, extra = _measured(found), _extra(made, found)
    tolerance = ON_GPU if made.device == "cuda" else ON_CPU
    rows, peak = compare(measured, estimate, tolerance), peak_error(measured, estimate)
    return Report(**common, **extra, status=status(rows, peak, tolerance), rows=tuple(rows), error=peak)


def _measured(found: Sequence[Any]) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
    """Of each instant the rank that needs most of the device; what the allocator counts beside the census is workspace."""
    chosen: dict[str, Mapping[str, Mapping[str, int]]] = {}
    for name in found[0].instants:
        taken = max(found, key=lambda f: f.held_bytes(name))
        gpu = dict(taken.instants[name]["gpu"])
        beside = taken.held_bytes(name) - sum(gpu.values())
        if beside > 0:
            gpu["workspace"] = gpu.get("workspace", 0) + beside
        chosen[name] = {"gpu": gpu, "host": taken.instants[name]["host"]}
    return chosen


def _extra(made: Planned, found: Sequence[Any]) -> dict[str, Any]:
    counters: dict[str, dict[str, int | None]] = {}
    for taken in found:
        for name, window in taken.windows.items():
            best = counters.setdefault(name, dict(window))
            for key, value in window.items():
                best[key] = max(best[key] or 0, value) if value is not None else best[key]
    seconds = [f.step_seconds for f in found if f.step_seconds]
    return {
        "counters": counters,
        "sites": found[0].sites,
        "process_bytes": max((f.process_bytes for f in found if f.process_bytes), default=None),
        "rss_bytes": tuple(f.rss_bytes for f in found),
        "step_seconds": max(seconds) if seconds else None,
        "notes": (*made.notes, *dict.fromkeys(note for f in found for note in f.notes)),
    }


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def written(report: Report, folder: Path) -> Report:
    """``validation.json`` in the folder, all or nothing; where it cannot be written a note says so."""
    path = folder / FILE
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        part.write_text(json.dumps(report.document(), indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        return replace(report, notes=(*report.notes, f"{path} was not written: {error.strerror}"))
    return report


__all__ = ["Cards", "Planned", "answer", "judged", "plan", "run", "written"]
