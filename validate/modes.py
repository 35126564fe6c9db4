"""Which of the four modes this machine can do, and how many GPUs it shows.

``auto`` takes the best: ``gpu`` where every rank has a card, ``rehearse`` where there is at least one, ``simulate``
without any. Nothing here imports torch: a process that has touched CUDA is a bad parent of ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from glob import glob

from estimators.errors import InputError, MissingDependency

MODES = ("auto", "gpu", "cpu", "simulate", "rehearse")
NODES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")  # NVIDIA, AMD, either under WSL
PROBE = (
    "import json, torch; n = torch.cuda.device_count(); "
    "print(json.dumps([n, list(torch.cuda.mem_get_info(0)) if n else []]))"
)
PROBE_SECONDS = 120


@dataclass(frozen=True)
class Cards:
    """What torch sees: how many cards, and free and total bytes of the first."""

    count: int = 0
    free_bytes: int = 0
    total_bytes: int = 0


@lru_cache(maxsize=1)
def cards() -> Cards:
    """The visible cards; none without a device file, so that nobody waits for torch where there is nothing to see."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", None) in ("", "-1") or not any(glob(pattern) for pattern in NODES):
        return Cards()
    import json

    try:
        done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=PROBE_SECONDS)
        count, memory = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        return Cards()
    return Cards(count, *memory) if count else Cards()


def launched(environment: Mapping[str, str] = os.environ) -> tuple[int, int, int, int] | None:
    """Rank, world, local rank and ranks of this node, where torchrun, Slurm or MPI started this process; else None."""
    for rank, world, local, per_node in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ):
        if rank in environment and world in environment and int(environment[world]) > 1:
            number, size = int(environment[rank]), int(environment[world])
            here = int(environment.get(per_node, "0").split("(")[0] or 0) or size
            return number, size, int(environment.get(local, number % here)), here
    return None


def chosen(asked: str, ranks: int, found: Cards, is_launched: bool) -> tuple[str, str]:
    """The mode and why it was taken. Raises ``InputError`` for a word that is none, ``MissingDependency`` without the
    device that the asked mode needs."""
    if asked not in MODES:
        raise InputError(f"mode {asked!r} is not one of {', '.join(MODES)}")
    enough = (is_launched and found.count > 0) or found.count >= ranks
    if asked == "auto":
        if enough:
            return "gpu", f"{found.count} GPUs are visible for {ranks} ranks"
        if found.count:
            return "rehearse", f"{found.count} of {ranks} GPUs are visible: one rank with real tensors in a fake group"
        return "simulate", "no GPU is visible: the engine's own code at full size under fake tensors"
    if asked == "gpu" and not enough:
        raise MissingDependency(
            f"mode gpu needs {ranks} GPUs and torch sees {found.count}: start it on all nodes with torchrun or srun, give "
            f"{'--nproc or --mode rehearse' if found.count else '--mode cpu or --mode simulate'}"
        )
    return asked, "asked for"
