"""A run made small enough for this machine's memory: fewer blocks first, then a shorter batch, then a smaller head.

Only as far as memory demands, and everything that was changed is said. Prediction and measurement are both of the
scaled run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from estimators.cluster import Cluster
from estimators.errors import InputError
from estimators.memory import Estimate, check_ranks, resolve
from estimators.run import Run
from estimators.units import gib
from estimators.values import replace

SHARE = 0.7  # of the memory that is free: other processes live here too
PROCESS_BYTES = 700 * 2**20  # torch, transformers and an engine, imported
MIN_SEQ_LEN = 16
MIN_VOCABULARY = 1024
MOST_RANKS = 4  # of a machine without accelerators, unless --nproc says more

Scaled = Mapping[str, tuple[int, int]]


def free_bytes() -> int:
    """RAM that is free here: of the machine, or of this process's control group where that is less."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()).isdigit():
        found.append(max(0, int(text) - int(used.read_text())))
    return min(found)


def default_ranks(run: Run) -> int:
    """Ranks to start on a CPU: those of the run as far as it has a few, with whole shard groups."""
    wanted = (
        MOST_RANKS if run.strategy.sharding == "hybrid-shard" or int(str(run.settings.knobs.get("hpz", 1))) > 1 else 2
    )
    return min(run.ranks, wanted)


def on_ranks(run: Run, ranks: int) -> Run:
    """The same run on ``ranks`` of one node; groups that are larger than half of it are cut to half."""
    if ranks == run.ranks and run.cluster.nodes == 1:
        return run
    options = dict(run.strategy.options)
    for knob in ("shard", "hpz"):
        size = options.get(knob, run.settings.knobs.get(knob) if run.strategy.sharding == "hybrid-shard" else None)
        if isinstance(size, int) and size > 1 and (knob in options or knob == "shard"):
            options[knob] = max(1, min(size, ranks // 2))
    strategy = replace(run.strategy, options=options)
    cluster = Cluster(run.cluster.gpu, ranks)
    check_ranks(strategy, cluster)
    return resolve(run.model, cluster, strategy, run.settings.device, workload=run.workload)


def needed_bytes(run: Run, processes: int) -> int:
    """RAM of ``processes`` ranks of a run on this machine, all of it: device and host are one."""
    estimate = Estimate(run)
    share = run.cluster.gpus_per_node
    largest = max(i.gpu_bytes + i.total("host") // share for i in estimate.instants)
    return processes * (largest + PROCESS_BYTES)


def fitted(run: Run, processes: int, memory: int, at_depth: Callable[[Run, int], Run], full: int) -> tuple[Run, Scaled]:
    """The run, or the largest that ``memory`` bytes hold, and what was changed: name -> (from, to).

    ``at_depth`` cuts a run to so many blocks of ``full``. Raises ``InputError`` where even the smallest does not fit.
    """
    budget = round(SHARE * memory)
    scaled: dict[str, tuple[int, int]] = {}

    def fits(asked: Run) -> bool:
        return needed_bytes(asked, processes) <= budget

    made = run
    while not fits(made):
        low, high = 1, full
        if fits(at_depth(made, 1)):
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if fits(at_depth(made, middle)) else (low, middle - 1)
            made = at_depth(made, low)
            scaled["layers"] = (full, low)
            break
        smaller = _smaller(made, run, scaled)
        if smaller is None:
            raise InputError(
                f"one block of {run.model.name} needs {gib(needed_bytes(at_depth(made, 1), processes))} GiB of RAM on "
                f"{processes} ranks and {gib(budget)} may be used: give a smaller model, --nproc 1 or --mode simulate"
            )
        made = smaller
    return made, scaled


def _smaller(made: Run, run: Run, scaled: dict[str, tuple[int, int]]) -> Run | None:
    """The next smaller question: one sequence, half the tokens, half the head."""
    work = made.workload
    if work.micro_batch > 1:
        scaled["micro_batch"] = (run.workload.micro_batch, 1)
        return _again(made, workload=replace(work, micro_batch=1))
    if work.seq_len // 2 >= MIN_SEQ_LEN:
        scaled["seq_len"] = (run.workload.seq_len, work.seq_len // 2)
        return _again(made, workload=replace(work, seq_len=work.seq_len // 2))
    words = made.model.config.get("vocab_size")
    if isinstance(words, int) and words // 2 >= MIN_VOCABULARY:
        scaled["vocab_size"] = (int(str(run.model.config["vocab_size"])), words // 2)
        return _again(made, model={**made.model.config, "vocab_size": words // 2})
    return None


def _again(run: Run, model: object = None, workload: object = None) -> Run:
    made = resolve(
        model or run.model, run.cluster, run.strategy, run.settings.device, workload=workload or run.workload
    )
    return replace(made, model=replace(made.model, name=run.model.name))
