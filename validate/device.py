"""The device of a run behind four questions: reset, allocated, reserved, process.

``allocated`` and ``reserved`` are the largest since the last ``reset``, in bytes. On CUDA they are the allocator's own
counters and NVML's; on a CPU there is no allocator to ask, so the census of live tensors answers. ``FakeDevice`` in the
tests records what it is asked, so that the path of a GPU runs before there is a GPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Protocol


class Device(Protocol):
    """What the loop needs of a device. ``type`` is torch's word for it, ``counts`` whether it has an allocator."""

    type: str
    counts: bool

    def reset(self) -> None:
        """Begin a new window."""

    def allocated(self) -> int:
        """Largest sum of live tensors since ``reset``."""

    def reserved(self) -> int | None:
        """Largest amount that the allocator held since ``reset``; None where there is no allocator."""

    def process(self) -> int | None:
        """What the driver says this process holds now; None where nobody can say."""

    def seconds(self) -> float:
        """A clock, read when everything that was started is done."""


class CudaDevice:
    """One visible GPU. Creating it makes it the current device."""

    type = "cuda"
    counts = True

    def __init__(self, index: int) -> None:
        import torch

        self._cuda = torch.cuda
        self.index = index
        torch.cuda.set_device(index)

    def reset(self) -> None:
        self._cuda.reset_peak_memory_stats(self.index)

    def allocated(self) -> int:
        return int(self._cuda.max_memory_allocated(self.index))

    def reserved(self) -> int | None:
        return int(self._cuda.max_memory_reserved(self.index))

    def process(self) -> int | None:
        return process_bytes(self._cuda.get_device_properties(self.index), os.getpid())

    def seconds(self) -> float:
        self._cuda.synchronize(self.index)
        return time.perf_counter()


class CpuDevice:
    """The CPU: ``live`` answers the largest sum of live tensors since ``forget`` was called."""

    type = "cpu"
    counts = False

    def __init__(self, live: Callable[[], int], forget: Callable[[], None]) -> None:
        self._live, self._forget = live, forget

    def reset(self) -> None:
        self._forget()

    def allocated(self) -> int:
        return self._live()

    def reserved(self) -> int | None:
        return None

    def process(self) -> int | None:
        return None

    def seconds(self) -> float:
        return time.perf_counter()


def process_bytes(properties: Any, pid: int) -> int | None:
    """Bytes of one process on one card, from NVML; None without pynvml, or where the driver hides processes."""
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = getattr(properties, "uuid", None)
        if uuid is None:
            return None
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        used = {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except Exception:  # NVML's errors are many, and none of them is a reason to lose a run
        return None
    return used.get(pid)


def host_rss_bytes() -> int:
    """The largest resident set of this process so far, in bytes."""
    import resource
    import sys

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
