"""Starts the ranks of a job, watches them, and leaves none behind.

Workers are started by the path of ``worker.py`` in a session of their own, so that one signal reaches everything that
they started. What ends a run early - a rank that fails or dies, no sign of life within the limit, an interrupt - ends
with every process stopped, and the answer says why.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from validate.causes import explained, kernel_kills, standing
from validate.cells.ranks import free_port
from validate.failure import broken, ended, instant_of
from validate.job import Broken, Job, events, read_result, result_path, write_job

WORKER = Path(__file__).resolve().parent / "worker.py"
LOOK = 0.1  # seconds between two looks at the ranks
START = 300.0  # seconds that imports may take before the first sign of life, where the limit is shorter
PORTS = 3  # starts of a job whose port another process took in the meantime
GRACE = 5.0  # seconds that the other ranks have to say what they saw, once one has failed
LOG_LINES = 15  # of a rank's log that a report quotes

Progress = Callable[[int, str], None]  # task and phase of the rank that is furthest behind


@dataclass(frozen=True)
class Place:
    """Which ranks this launcher starts, and where they meet. ``per_process``: a process a rank, else forks of one.

    ``picks_port``: the port is this launcher's own choice, and another does as well.
    """

    ranks: tuple[int, ...]
    world: int
    per_process: bool
    environment: Mapping[str, str]
    picks_port: bool = False


class Terminated(KeyboardInterrupt):
    """SIGTERM: how a batch system ends a job."""


def local(mode: str, ranks: int) -> Place:
    """Every rank on this machine. A rehearsal and a simulation are one process, which is rank 0 of the world."""
    here = tuple(range(ranks)) if mode in ("cpu", "gpu") else (0,)
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "LOCAL_WORLD_SIZE": str(len(here))}
    return Place(here, ranks, mode == "gpu", meet, picks_port=True)


def launch(
    job: Job, place: Place, seconds: float, progress: Progress = lambda task, phase: None, keep: Path | None = None
) -> list[list[Any]]:
    """Results by task and rank: what a rank measured, or ``Broken``. ``seconds``: without a sign of life from any rank.

    ``keep`` names a folder in which the job's files stay; without it they are deleted.
    """
    for left in reversed(range(PORTS)):
        found = _launched(job, place, seconds, progress, keep)
        taken = any(isinstance(one, Broken) and one.kind == "port" for task in found for one in task)
        if not (taken and left and place.picks_port):
            break
        place = replace(place, environment={**place.environment, "MASTER_PORT": str(free_port())})
    return found


def _launched(job: Job, place: Place, seconds: float, progress: Progress, keep: Path | None) -> list[list[Any]]:
    workers: list[subprocess.Popen[bytes]] = []
    first: Broken | None
    with _folder(keep) as folder:
        killed = kernel_kills()
        try:
            with _terminable():
                write_job(folder, job)
                for group in [(rank,) for rank in place.ranks] if place.per_process else [place.ranks]:
                    with _uninterrupted():  # what is started is known before anything stops it
                        workers.append(_start(folder, group, place))
                first = _watch(folder, job, place, workers, seconds, progress)
        except KeyboardInterrupt as how:
            kind, reason = ("terminated", "ended by SIGTERM") if isinstance(how, Terminated) else ("interrupted",) * 2
            first = Broken(kind, reason, place.ranks[0], instant_of(_phase(folder, place.ranks)[1]))
        except OSError as error:  # of the job's own files
            first = broken(error, place.ranks[0], "")
        finally:
            stop(workers)
        if first is not None:
            first = explained(first, [folder])
            if first.kind == "killed" and kernel_kills() > killed:
                first = replace(first, kind="memory", reason=first.reason.split(" (SIGKILL)")[0] + " by the kernel: the "
                                "memory limit of its control group is used up")  # fmt: skip
        return [[_result(folder, rank, task, first) for rank in _told(job, place)] for task in range(len(job.tasks))]


@contextmanager
def _terminable() -> Iterator[None]:
    """Inside, SIGTERM is an exception as SIGINT is, so that ranks are stopped and a report is written."""

    def raised(number: int, frame: Any) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, raised)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """SIGINT and SIGTERM that come inside are raised at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {n: signal.signal(n, lambda number, _: came.append(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: not of Python
    for number in came:
        signal.raise_signal(number)


def _told(job: Job, place: Place) -> Sequence[int]:
    """Ranks whose results lie in the folder: those started here, and all of them where rank 0 collects."""
    return range(job.ranks) if job.gathers and 0 in place.ranks else place.ranks


def _result(folder: Path, rank: int, task: int, first: Broken | None) -> Any:
    found = read_result(folder, rank, task)
    if first is not None and (found is None or isinstance(found, Broken)):
        return first
    return found


def _start(folder: Path, ranks: tuple[int, ...], place: Place) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **place.environment, "WORLD_SIZE": str(place.world)}
    if place.per_process:
        environment.setdefault("LOCAL_RANK", str(ranks[0]))
        environment["RANK"] = str(ranks[0])
    with open(folder / f"rank-{ranks[0]}.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, str(WORKER), str(folder), *map(str, ranks)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
        )  # fmt: skip


def _watch(
    folder: Path, job: Job, place: Place, workers: list[subprocess.Popen[bytes]], seconds: float, progress: Progress
) -> Broken | None:
    """The first failure, or None when every rank has answered every task."""
    last = len(job.tasks) - 1
    seen: tuple[int, ...] = ()
    alive_at, failed_at = time.monotonic(), 0.0
    failures: list[Broken] = []
    while True:
        time.sleep(LOOK)
        failures = _failures(folder, job, place, workers)
        now = time.monotonic()
        if failures:
            failed_at = failed_at or now
            is_over = failures[0].kind == "port" or all(worker.poll() is not None for worker in workers)
            if is_over or now - failed_at > GRACE:
                return min(failures, key=lambda f: f.kind == "peer")
        elif all(result_path(folder, rank, last).exists() for rank in place.ranks):
            return None
        signs = tuple(len(events(folder, rank)) for rank in place.ranks)
        if signs != seen:
            seen, alive_at = signs, now
            progress(*_phase(folder, place.ranks))
        elif now - alive_at > (seconds if any(seen) else max(seconds, START)):
            _, phase = _phase(folder, place.ranks)
            rank, why, detail = standing(folder, place.ranks)
            limit = seconds if any(seen) else max(seconds, START)
            reason = (
                f"no rank moved for {limit:g} s at {phase or 'the start'}{'; ' if why else ''}{why}: all were stopped"
            )
            return Broken("hang", reason, rank, instant_of(phase), None, detail)


def _failures(folder: Path, job: Job, place: Place, workers: list[subprocess.Popen[bytes]]) -> list[Broken]:
    """What failed so far: first what ranks told, in that order, then who ended without a word."""
    told = []
    for rank in place.ranks:
        for task in range(len(job.tasks)):
            path = result_path(folder, rank, task)
            if path.exists() and isinstance(found := read_result(folder, rank, task), Broken):
                told.append((path.stat().st_mtime_ns, found))
    silent = []
    for at, worker in enumerate(workers):
        code = worker.poll()
        ranks = [place.ranks[at]] if place.per_process else list(place.ranks)
        missing = [r for r in ranks if not result_path(folder, r, len(job.tasks) - 1).exists()]
        if code is not None and missing:
            rank = _dead(folder, missing)
            silent.append(ended(code, rank, _phase(folder, [rank])[1], tail(folder, rank)))
    return [found for _, found in sorted(told, key=lambda pair: pair[0])] + silent


def _dead(folder: Path, ranks: Sequence[int]) -> int:
    """Of the ranks without a result the one that its worker named as the first to go."""
    for line in tail(folder, ranks[0], 200).splitlines():
        words = line.split()
        if words[:1] == ["rank"] and words[2:4] == ["ended", "with"]:
            return int(words[1])
    return ranks[0]


def _phase(folder: Path, ranks: Sequence[int]) -> tuple[int, str]:
    """Task and phase of the rank that has come least far."""
    told = [events(folder, rank) for rank in ranks]
    behind = min(told, key=len, default=[])
    return behind[-1] if behind else (0, "")


def tail(folder: Path, rank: int, lines: int = LOG_LINES) -> str:
    """The last lines that a rank printed."""
    path = folder / f"rank-{rank}.log"
    if not path.exists():
        return ""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def stop(workers: Sequence[subprocess.Popen[bytes]], seconds: float = 2.0) -> None:
    """End workers and everything in their sessions: all asked first, what is left after ``seconds`` killed.

    Returns when nothing of them lives: what was killed needs a moment to hand back its memory.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        for worker in workers:
            try:
                os.killpg(worker.pid, number)
            except (ProcessLookupError, PermissionError):
                continue
        end = time.monotonic() + seconds
        for worker in workers:
            try:
                worker.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
    for worker in workers:
        worker.wait()
    end = time.monotonic() + GRACE
    while workers and _living({worker.pid for worker in workers}) and time.monotonic() < end:
        time.sleep(LOOK / 10)


def _living(groups: set[int]) -> bool:
    """Whether a process of these groups runs; not known, and so False, where there is no /proc."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = entry.read_text().rsplit(")", 1)[1].split()[:3]
        except (OSError, ValueError, IndexError):
            continue
        if int(group) in groups and state not in "ZX":
            return True
    return False


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        for old in keep.glob("rank-*"):  # of an earlier run: its results are not this one's
            old.unlink(missing_ok=True)
        yield keep
        return
    folder = Path(tempfile.mkdtemp(prefix="dist-advisor-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
