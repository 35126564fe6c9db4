"""Start ranks on this machine: fork after one import, talk over gloo, run many jobs in one process group.

The parent imports what is slow; children are forks. A job is a function of nothing that runs on every rank and
returns something picklable. A job that fails or hangs ends its group; the jobs after it run in a new one.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

Job = Callable[[], Any]


@dataclass(frozen=True)
class Failure:
    """Why a job has no result: the traceback of the first rank that failed, or that the time was up."""

    reason: str


def run_on_ranks(jobs: Sequence[Job], ranks: int, seconds_per_job: float = 120.0) -> list[list[Any] | Failure]:
    """Each job's results by rank, in the order of ``jobs``; a ``Failure`` in place of results that never came."""
    results: list[list[Any] | Failure] = []
    while len(results) < len(jobs):
        results.extend(_run_group(jobs[len(results) :], ranks, seconds_per_job))
    return results


def _run_group(jobs: Sequence[Job], ranks: int, seconds: float) -> list[list[Any] | Failure]:
    """Results up to and including the first failure."""
    import torch

    torch.set_num_threads(1)  # a forked child cannot use the parent's thread pool
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
        port = free_port()
        processes = [
            context.Process(target=_work, args=(rank, ranks, port, folder, jobs, pipes[rank][1]), daemon=True)
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for _, writer in pipes:
            writer.close()
        try:
            return _collect([reader for reader, _ in pipes], len(jobs), seconds)
        finally:
            for process in processes:
                process.join(2)
                if process.is_alive():
                    process.kill()
                    process.join()


def _collect(readers: list[Connection], num_jobs: int, seconds: float) -> list[list[Any] | Failure]:
    results: list[list[Any] | Failure] = []
    for _ in range(num_jobs):
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + seconds
        while len(answers) < len(readers):
            pending = [reader for rank, reader in enumerate(readers) if rank not in answers]
            ready = wait(pending, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                return [*results, Failure(f"no answer within {seconds:g} s")]
            for reader in ready:
                assert isinstance(reader, Connection)
                try:
                    answer = reader.recv()
                except EOFError:
                    answer = Failure("the rank died without an answer")
                if isinstance(answer, Failure):
                    return [*results, answer]
                answers[readers.index(reader)] = answer
        results.append([answers[rank] for rank in range(len(readers))])
    return results


def _work(rank: int, ranks: int, port: int, folder: str, jobs: Sequence[Job], answers: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks, timeout=timedelta(minutes=5)
        )
        for job in jobs:
            torch.manual_seed(0)
            answers.send(job())
            dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        answers.send(Failure(f"rank {rank}: {traceback.format_exc(limit=-12)}"))
    finally:
        answers.close()
        os._exit(0)  # leave at once: nothing of the parent's may run at exit in a fork


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
