"""Many questions at once: rows as they come, on several processes, restartable.

A combination with a strategy is one estimate. Without one the answer is the first strategy that fits, from the least
communication to the most offload, with the settings as they were given: no setting is searched (``recommend`` does).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from typing import Any, TextIO

from estimators.cluster import Cluster, parse_cluster
from estimators.errors import AdvisorError, InputError
from estimators.memory import Estimate, estimate
from estimators.model import resolve_model
from selector.cost import tokens_per_second
from selector.sweep_file import Combination

CHUNK = 32  # combinations that a process takes at once, and that an interruption can cost
# From the least communication to the most offload; the first that fits is the answer.
IN_ORDER = (
    "ddp", "zero1", "zero2", "fsdp-shard-grad-op", "fsdp-full-shard", "zero3", "zero1+optimizer@cpu",
    "zero2+optimizer@cpu", "zero3+optimizer@cpu", "fsdp-full-shard+params@cpu", "zero3+optimizer@cpu+params@cpu",
)  # fmt: skip
ALONE = (
    "single", "zero1+optimizer@cpu", "zero2+optimizer@cpu", "fsdp-full-shard+params@cpu",
    "zero3+optimizer@cpu+params@cpu",
)  # fmt: skip
WITH_NVME = ("zero3+optimizer@nvme+params@nvme",)
CLOSENESS = {"fits": 0, "tight": 1, "unknown": 2, "no": 3}


@lru_cache(maxsize=4096)
def cluster_of(gpus: str, facts: tuple[tuple[str, Any], ...]) -> Cluster:
    return parse_cluster(gpus, **dict(facts))


def check(combinations: Sequence[Combination]) -> None:
    """Refuse a model or cluster that nobody knows before anything is computed."""
    for model in dict.fromkeys(c.model for c in combinations):
        resolve_model(model)
    for gpus, facts in dict.fromkeys((c.gpus, c.facts) for c in combinations):
        cluster_of(gpus, facts)


def row(asked: Combination) -> dict[str, Any]:
    """The answer to one combination; what is wrong with it stands in ``error``."""
    found: Estimate | None = None
    error = None
    try:
        found = best(asked)
    except AdvisorError as problem:
        error = str(problem)
    return {
        **asked.columns,
        "strategy": found.strategy if found else asked.strategy,
        "verdict": found.verdict if found else None,
        "gpu_process_bytes": round(found.gpu.process.expected) if found else None,
        "gpu_capacity_bytes": found.gpu.capacity if found else None,
        "host_bytes_per_node": round(found.host.expected) if found else None,
        "nvme_bytes_per_node": found.nvme_bytes if found else None,
        "peak_instant": found.peak.name if found else None,
        "tokens_per_s_per_gpu": tokens_per_second(found) if found else None,
        "error": error,
    }


def best(asked: Combination) -> Estimate:
    """The named strategy, or the first that fits; where none does, the one that comes closest."""
    model, cluster, fields = resolve_model(asked.model), cluster_of(asked.gpus, asked.facts), dict(asked.fields)
    if asked.strategy:
        return estimate(model, cluster, asked.strategy, **fields)
    names = (ALONE if cluster.ranks == 1 else IN_ORDER) + (WITH_NVME if cluster.nvme_bytes else ())
    closest: Estimate | None = None
    problem: AdvisorError | None = None
    for name in names:
        try:
            found = estimate(model, cluster, name, **fields)
        except AdvisorError as reason:
            problem = problem or reason
            continue
        if found.verdict == "fits":
            return found
        if closest is None or _distance(found) < _distance(closest):
            closest = found
    if closest is None:
        assert problem is not None
        raise problem
    return closest


def _distance(found: Estimate) -> tuple[int, float]:
    """How far from fitting; among those that may fit the earlier, with less communication and offload, stays."""
    return CLOSENESS[found.verdict], found.gpu.expected if found.verdict == "no" else 0.0


def rows(chunk: Sequence[Combination]) -> list[dict[str, Any]]:
    return [row(c) for c in chunk]


class Partial:
    """Rows already computed, a line each, in a file beside the sweep's: what an interruption leaves behind."""

    def __init__(self, path: str, digest: str, total: int) -> None:
        self.path, self.digest, self.total = path, digest, total
        self.done: dict[int, dict[str, Any]] = {}
        self._file: TextIO | None = None

    def __enter__(self) -> Partial:
        self._load()
        beside = f"{self.path}.{os.getpid()}.part"  # what an earlier run left is replaced only when all of it is copied
        try:
            self._file = open(beside, "w", encoding="utf-8")
            self._line({"sweep": self.digest, "total": self.total})
            for index, found in self.done.items():
                self._line({"i": index, "row": found})
            self._file.flush()
            os.replace(beside, self.path)
        except OSError as error:
            raise InputError(f"--partial {self.path} cannot be written: {error.strerror}") from None
        return self

    def _load(self) -> None:
        """Rows of an earlier run of the same file; a last line that was cut is dropped."""
        try:
            with open(self.path, encoding="utf-8") as file:
                head = json.loads(file.readline() or "{}")
                if head.get("sweep") != self.digest or head.get("total") != self.total:
                    return
                for line in file:
                    entry = json.loads(line)
                    self.done[int(entry["i"])] = entry["row"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return

    def add(self, start: int, found: Sequence[dict[str, Any]]) -> None:
        for offset, one in enumerate(found):
            self.done[start + offset] = one
            self._line({"i": start + offset, "row": one})
        assert self._file is not None
        self._file.flush()

    def _line(self, entry: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()

    def remove(self) -> None:
        os.unlink(self.path)


def _worker() -> None:
    """A process of the pool: Ctrl-C is the parent's to handle, and the parent's end is its own."""
    import multiprocessing
    import signal
    import threading

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def compute(combinations: Sequence[Combination], partial: Partial, processes: int) -> Iterator[int]:
    """Fill ``partial``; yields how many combinations are done after each chunk."""
    chunks = []
    for start in range(0, len(combinations), CHUNK):
        span = range(start, min(start + CHUNK, len(combinations)))
        if any(i not in partial.done for i in span):
            chunks.append((start, combinations[start : span.stop]))
    yield len(partial.done)
    if processes == 1 or len(chunks) < 2:
        for start, chunk in chunks:
            partial.add(start, rows(chunk))
            yield len(partial.done)
        return
    with ProcessPoolExecutor(min(processes, len(chunks)), initializer=_worker) as pool:
        waiting = {pool.submit(rows, chunk): start for start, chunk in chunks}
        try:
            for future in as_completed(waiting):
                partial.add(waiting[future], future.result())
                yield len(partial.done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
