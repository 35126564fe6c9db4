"""What a worker is told, and what it tells: files in a folder of their own, so that a rank that dies has told so far.

job.pickle              the tasks, written by the launcher
rank-R.events           a line a phase: task, phase, seconds since the start
rank-R.task-T.pickle    a ``Taken``, a ``Broken`` or a simulation
rank-R.log, rank-R.pid  what the rank printed, and which process it is
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimators.run import Run


@dataclass(frozen=True)
class Task:
    """One run of one engine. ``config``: the DeepSpeed JSON, settled; ``how``: what else the engine's start needs."""

    run: Run
    config: Mapping[str, Any] | None = None
    how: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """What one start of the ranks does. ``seconds``: of a collective that no peer answers."""

    mode: str  # gpu, cpu, simulate, rehearse
    device: str  # cuda, cpu
    tasks: tuple[Task, ...]
    ranks: int
    seconds: float
    simulated: Mapping[str, Any] = field(default_factory=dict)
    snapshot: str = ""  # where the allocator's history goes, for rank 0
    gathers: bool = False  # ranks of several launchers: rank 0 collects what all found


@dataclass(frozen=True)
class Broken:
    """Why a rank has no result. ``kind`` is a word of ``validate.failure``, ``reason`` the sentence, ``instant`` the
    phase in which it happened, ``asked_bytes`` what an allocation wanted."""

    kind: str
    reason: str
    rank: int
    instant: str = ""
    asked_bytes: int | None = None
    detail: str = ""


def write_job(folder: Path, job: Job) -> None:
    (folder / "job.pickle").write_bytes(pickle.dumps(job))


def read_job(folder: Path) -> Job:
    job: Job = pickle.loads((folder / "job.pickle").read_bytes())
    return job


def result_path(folder: Path, rank: int, task: int) -> Path:
    return folder / f"rank-{rank}.task-{task}.pickle"


def write_result(folder: Path, rank: int, task: int, found: Any) -> None:
    """All or nothing: a reader never sees half a result."""
    path = result_path(folder, rank, task)
    part = path.with_suffix(".part")
    part.write_bytes(pickle.dumps(found))
    part.replace(path)


def read_result(folder: Path, rank: int, task: int) -> Any | None:
    path = result_path(folder, rank, task)
    return pickle.loads(path.read_bytes()) if path.exists() else None


class Notices:
    """The events file of one rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = open(folder / f"rank-{rank}.events", "a", encoding="utf-8", buffering=1)  # noqa: SIM115
        self._started = time.monotonic()
        self.task, self.phase = 0, ""

    def __call__(self, phase: str) -> None:
        self.phase = phase
        self._file.write(f"{self.task} {phase} {time.monotonic() - self._started:.3f}\n")


def events(folder: Path, rank: int) -> list[tuple[int, str]]:
    """Task and phase of every notice of a rank so far."""
    path = folder / f"rank-{rank}.events"
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if len(words) == 3:
            found.append((int(words[0]), words[1]))
    return found
