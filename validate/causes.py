"""What the machine knows about a failure that the failed process does not say: a full disk, the kernel's killing,
ranks that stand still; and what to install where an operator could not be built."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from estimators.memory import Estimate
from validate.job import Broken, Task, events

FULL = 64 * 2**10  # bytes left on a disk on which nothing more can be written
ANSWER = 1.0  # seconds that ranks have to say where they stand
# counters of processes that the kernel killed in this control group: version 2, version 1
COUNTERS = (("/sys/fs/cgroup", "memory.events"), ("/sys/fs/cgroup/memory", "memory.oom_control"))
BUILD = "a C++ compiler (Debian: apt install g++) and ninja (pip install ninja)"
# a piece of DeepSpeed's or torch's message -> what to install
OPERATORS = (
    (r"async_io|aio", f"async_io (NVMe offload) needs libaio (Debian: apt install libaio-dev) and {BUILD}; "
                      "ds_report shows what DeepSpeed finds"),
    (r"cpu_adam", f"CPUAdam (offload of the optimizer) needs {BUILD}, with CUDA also nvcc of torch's CUDA version; "
                  "or build it once: DS_BUILD_CPU_ADAM=1 pip install deepspeed"),
    (r"CUDA_HOME|nvcc", "install the CUDA toolkit of torch's version and set CUDA_HOME"),
    (r"", f"building it needs {BUILD}"),
)  # fmt: skip
HOLDER = re.compile(r"Process (\d+) has (\d+(?:\.\d+)? [KMG]iB) memory in use")
OWN_USE = re.compile(r"this process has (\d+(?:\.\d+)? [KMG]iB) memory in use")


def advice(text: str) -> str:
    """What to install, given the message of an operator that could not be built."""
    return next(words for pattern, words in OPERATORS if re.search(pattern, text))


def others(text: str) -> str:
    """Who else holds memory of a card, from torch's message of an allocation that failed; empty where nobody does."""
    found = [f"process {pid} holds {size} of it" for pid, size in HOLDER.findall(text)]
    return f"the device is shared: {', '.join(found)}" if found else ""


def swap_places(config: Mapping[str, Any] | None) -> list[Path]:
    """Folders that a settled DeepSpeed JSON swaps to."""
    zero = (config or {}).get("zero_optimization", {})
    blocks = [zero.get(name) for name in ("offload_optimizer", "offload_param")]
    return [
        Path(b["nvme_path"]) for b in blocks if isinstance(b, dict) and b.get("device") == "nvme" and "nvme_path" in b
    ]


def no_room(task: Task) -> Broken | None:
    """Why a run cannot swap what it would: asked before anything starts."""
    for place in swap_places(task.config):
        needed, free = Estimate(task.run).nvme_bytes, _free(place)
        if free is not None and free < needed:
            return Broken("disk", f"the disk is too full for NVMe offload: {free:,} bytes are free at {place}, and the ranks "
                          f"of this node swap {needed:,} bytes to it", 0, "load")  # fmt: skip
    return None


def is_full(path: Path | str) -> bool:
    """Whether nothing more can be written where ``path`` lies, or will lie."""
    free = _free(Path(path))
    return free is not None and free < FULL


def _free(place: Path) -> int | None:
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None


def kernel_kills() -> int:
    """How many processes of this control group the kernel has killed for want of memory; 0 where it does not count."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    groups = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    for (root, name), path in zip(COUNTERS, (groups.get(""), groups.get("memory")), strict=True):
        for folder in (f"{root}{path or ''}", root):
            try:
                text = Path(folder, name).read_text(encoding="utf-8")
            except OSError:
                continue
            if found := re.search(r"^oom_kill (\d+)", text, re.MULTILINE):
                return int(found[1])
    return 0


def standing(folder: Path, ranks: Sequence[int]) -> tuple[int, str, str]:
    """Of ranks that no longer move: the one that holds up the others, the reason in words, and where each stands.

    Each is asked for its stack (``validate.rank`` answers SIGUSR1); one that the others wait for is suspended, or has
    come least far, or stands outside the collectives.
    """
    asked = {rank: pid for rank in ranks if (pid := _pid(folder, rank))}
    suspended = [rank for rank, pid in asked.items() if _state(pid) in "Tt"]
    for pid in asked.values():
        try:
            os.kill(pid, signal.SIGUSR1)
        except OSError:
            continue
    time.sleep(ANSWER if asked else 0)
    stacks = {rank: _stack(folder, rank) for rank in asked}
    detail = "\n".join(f"rank {rank}: {' < '.join(stack[:4]) or 'does not answer'}" for rank, stack in stacks.items())
    locked = [rank for rank, stack in stacks.items() if any("file_baton.py" in line for line in stack)]
    if suspended:
        return suspended[0], f"rank {suspended[0]} is suspended (SIGSTOP)", detail
    if locked and len(locked) == len(stacks):
        return locked[0], ("an operator's build is locked: another process builds it, or one that was killed left its lock; "
                           "delete the file lock in its folder under ~/.cache/torch_extensions"), detail  # fmt: skip
    if not asked:
        return ranks[0], "", ""
    came = {rank: len(events(folder, rank)) for rank in asked}
    outside = [r for r, stack in stacks.items() if stack and not any("torch/distributed" in line for line in stack[:3])]
    behind = min(asked, key=lambda rank: (came[rank], rank not in outside))
    is_alone = len(set(came.values())) > 1 or outside == [behind]
    return behind, f"rank {behind} holds up the others" if is_alone else "", detail


def _pid(folder: Path, rank: int) -> int:
    try:
        return int((folder / f"rank-{rank}.pid").read_text())
    except (OSError, ValueError):
        return 0


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return "?"


def _stack(folder: Path, rank: int) -> list[str]:
    """Innermost frame first: ``file:line in function``."""
    try:
        text = (folder / f"rank-{rank}.stack").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = re.findall(r'File "([^"]*)", line (\d+) in (\S+)', text)
    return [f"{'/'.join(name.split('/')[-3:])}:{line} in {function}" for name, line, function in found]


def explained(broken: Broken, places: Sequence[Path | str]) -> Broken:
    """The same failure, with a full disk as its reason where one of the places that the run writes to is full."""
    full = [str(place) for place in places if is_full(place)]
    if full and broken.kind == "disk":
        return replace(broken, reason=f"{broken.reason}: {full[0]}")
    if full and broken.kind in ("error", "died"):
        return replace(broken, kind="disk", reason=f"the disk is full at {full[0]}: {broken.reason}")
    return broken
