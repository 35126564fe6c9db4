"""What a worker does: import once, fork its ranks if it has several, and in each run the tasks of the job."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from estimators.run import Run
from validate.causes import explained, swap_places
from validate.failure import broken
from validate.job import Job, Notices, Task, read_job, write_result


def main(folder: str, ranks: Sequence[int]) -> int:
    """0 when every rank has written a result for every task, whatever it says."""
    die_with_parent()
    place = Path(folder)
    job = read_job(place)
    _import(job)
    if len(ranks) == 1:
        return _rank(place, job, ranks[0])
    children = {}
    for rank in ranks:
        child = os.fork()
        if not child:
            os._exit(_guarded(place, job, rank))
        children[child] = rank
    return _wait(children)


def _wait(children: dict[int, int]) -> int:
    """The first rank that ends badly ends the worker with its status; the launcher stops the others."""
    while children:
        child, status = os.wait()
        rank = children.pop(child)
        code = os.waitstatus_to_exitcode(status)
        if code:
            print(f"rank {rank} ended with {code}", file=sys.stderr, flush=True)
            return code if code > 0 else 128 - code
    return 0


def _guarded(place: Path, job: Job, rank: int) -> int:
    try:
        log = os.open(place / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        return _rank(place, job, rank)
    except BaseException:
        traceback.print_exc()
        return 70


def _import(job: Job) -> None:
    """What is slow, before the ranks are forked. CUDA is not touched here: it does not survive a fork."""
    import warnings

    warnings.filterwarnings("ignore")
    torch = import_module("torch")
    if job.device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // job.ranks if job.mode == "cpu" else os.cpu_count() or 1))
    names = {"validate.simulate"} if job.mode == "simulate" else {"validate.loop", "torch.distributed.fsdp"}
    for task in job.tasks:
        kind = str(task.run.model.config.get("model_type", ""))
        names.add(f"transformers.models.{kind}.modeling_{kind}")
        names |= {"deepspeed"} if task.run.strategy.engine == "deepspeed" else set()
        names |= {"peft"} if task.run.workload.has_adapters else set()
    for name in sorted(names):
        try:
            import_module(name)
        except ImportError as missing:
            print(f"{name}: {missing}", file=sys.stderr)  # whoever needs it says so


def _rank(place: Path, job: Job, rank: int) -> int:
    die_with_parent()
    _answer_where(place / f"rank-{rank}.stack")
    (place / f"rank-{rank}.pid").write_text(str(os.getpid()))
    notices = Notices(place, rank)
    notices("join")
    try:
        import torch

        if job.mode == "cpu" and job.ranks > 1:
            torch.set_num_threads(1)  # a forked child cannot use the parent's thread pool
        if job.mode == "simulate":
            return _simulated(place, job, rank, notices)
        from validate.device import CudaDevice

        device = CudaDevice(int(os.environ.get("LOCAL_RANK", "0"))) if job.device == "cuda" else None
        os.environ.update(RANK=str(rank), LOCAL_RANK=os.environ.get("LOCAL_RANK", str(rank)))
        if job.mode == "rehearse":
            return _rehearsed(place, job, device, notices)
        with _world(job, [task.run for task in job.tasks]):
            for at, task in enumerate(job.tasks):
                notices.task = at
                torch.manual_seed(0)
                write_result(place, rank, at, _taken(task, job, device, notices, place))
    except BaseException as error:
        traceback.print_exc()
        swaps = [path for task in job.tasks for path in swap_places(task.config)]
        write_result(place, rank, notices.task, explained(broken(error, rank, notices.phase), swaps))
        return 0 if isinstance(error, Exception) else 70
    notices("end")
    return 0


def _world(job: Job, runs: Sequence[Run]) -> AbstractContextManager[None]:
    """The process group of these runs; none for a single process that needs none."""
    from validate.worlds import joined

    engines = {run.strategy.engine for run in runs}
    if engines == {"torch"} and job.ranks == 1:
        return nullcontext()
    return joined(job.mode, "deepspeed" in engines, job.device, job.seconds)


def _rehearsed(place: Path, job: Job, device: Any, notices: Notices) -> int:
    """One after another on one device, each rank that may need most; of each instant the one that does."""
    import torch

    from validate.loop import largest
    from validate.simulate.network import needy_ranks

    for at, task in enumerate(job.tasks):
        notices.task = at
        found = []
        for rank in needy_ranks(task.run):
            os.environ["RANK"] = str(rank)
            torch.manual_seed(0)
            with _world(job, [task.run]):
                found.append(_took(task, job, device, notices))
        write_result(place, 0, at, largest(found))
    notices("end")
    return 0


def _taken(task: Task, job: Job, device: Any, notices: Notices, place: Path) -> Any:
    found = _took(task, job, device, notices)
    if not job.gathers:
        return found
    import torch.distributed as dist

    everywhere: list[Any] = [None] * job.ranks
    dist.all_gather_object(everywhere, found)
    if dist.get_rank() == 0:
        for rank, other in enumerate(everywhere[1:], 1):
            write_result(place, rank, notices.task, other)
    return found


def _took(task: Task, job: Job, device: Any, notices: Notices) -> Any:
    """Where accelerate would not shard, or has no real group, torch's engine is built from what accelerate reads."""
    from validate.accelerate_yaml import as_read
    from validate.loop import take
    from validate.snapshot import recorded

    yaml, run, notes = task.how.get("accelerate"), task.run, ()
    if yaml and job.mode != "gpu":
        run, notes = as_read(Path(yaml), run)
    categories: dict[int, str] | None = {} if job.snapshot and os.environ.get("RANK") == "0" else None
    with nullcontext() if categories is None else recorded(job.snapshot, categories):
        found = take(run, job.mode, device, task.config, notices, Path(yaml) if yaml else None, categories)
    return replace(found, notes=(*notes, *found.notes))


def _simulated(place: Path, job: Job, rank: int, notices: Notices) -> int:
    from validate.simulate import simulate

    for at, task in enumerate(job.tasks):
        notices.task = at
        notices("simulate")
        write_result(place, rank, at, simulate(task.run, **job.simulated))
    notices("end")
    return 0


def _answer_where(path: Path) -> None:
    """SIGUSR1 writes the stack of this rank there: what the launcher asks of ranks that do not move."""
    import faulthandler
    import signal

    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, open(path, "w", encoding="utf-8"), all_threads=False)  # noqa: SIM115


def die_with_parent() -> None:
    """Linux ends this process when the one that started it is gone, however it went."""
    if sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
