"""A counter of the CPU that costs microseconds: what the C heap has given out.

torch has no allocator of its own on a CPU; its tensors are blocks of the C heap. glibc's ``mallinfo2`` says how many
bytes of it are in use, in all arenas and in blocks that are mapped on their own. It knows no largest value, so it is
read at moments (:meth:`HeapDevice.sample`), and the largest of those counts. Where there is no such counter, or another
allocator took glibc's place, the resident set is read instead, which also holds what was freed and not returned.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
PROBE_BYTES = 8 * 2**20


class MallInfo(ctypes.Structure):
    """``struct mallinfo2`` (glibc 2.33 and later)."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


class HeapDevice:
    """A :class:`validate.device.Device` of this process's CPU. ``held_bytes``: tensors that exist when it is made.

    ``knows_all``: between steps every tensor is known to the recording, so that what kernels and threads keep on the
    heap after the first steps can be told from the run's.
    """

    type = "cpu"
    counts = True

    def __init__(self, held_bytes: int, knows_all: bool = True) -> None:
        self.knows_all = knows_all
        self.counter, self._read = reader()
        self._beside = self._read() - held_bytes
        self._largest = 0

    def rebase(self, held_bytes: int) -> None:
        """So many bytes of tensors exist now; what the heap holds beside them is not the run's."""
        self._beside = self._read() - held_bytes

    def sample(self) -> None:
        """Look now."""
        self._largest = max(self._largest, self._read() - self._beside)

    def reset(self) -> None:
        self._largest = 0
        self.sample()

    def allocated(self) -> int:
        self.sample()
        return self._largest

    def reserved(self) -> int | None:
        return None

    def process(self) -> int | None:
        return resident()

    def seconds(self) -> float:
        return time.perf_counter()


def reader() -> tuple[str, Callable[[], int]]:
    """``heap`` or ``resident``, and the function that reads it, in bytes."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return "resident", resident
    mallinfo.restype = MallInfo

    def heap() -> int:
        found = mallinfo()
        return int(found.uordblks + found.hblkhd)

    before = heap()
    probe = ctypes.create_string_buffer(PROBE_BYTES)
    is_counted = PROBE_BYTES <= heap() - before < 2 * PROBE_BYTES
    del probe
    return ("heap", heap) if is_counted else ("resident", resident)


def resident() -> int:
    """The resident set now, in bytes; the largest so far where /proc does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        from validate.device import host_rss_bytes

        return host_rss_bytes()
