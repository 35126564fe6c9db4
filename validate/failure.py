"""What went wrong, in words: kinds that a report names, recognised from the error or from how a process ended."""

from __future__ import annotations

import re
import signal

from validate.causes import advice, others
from validate.job import Broken

INSTANTS = {
    "join": "", "simulate": "", "build": "load", "start": "load", "between": "step", "end": "",
}  # fmt: skip
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
# torch's allocators: CUDACachingAllocator.cpp, CPUAllocator.cpp
ASKED = re.compile(r"[Tt]ried to allocate (\d+(?:\.\d+)?) ?(bytes|KiB|MiB|GiB)")
MEMORY = re.compile(r"out of memory|can't allocate memory|Cannot allocate memory|OutOfMemoryError", re.IGNORECASE)
# kind -> what its message holds, and the sentence; the first that matches
KINDS: tuple[tuple[str, str, str], ...] = (
    ("port", r"EADDRINUSE|[Aa]ddress already in use", "the port of the rendezvous is taken by another process"),
    ("disk", r"No space left on device|ENOSPC", "the disk is full"),
    ("compiler", r"Error building extension|[Nn]inja is required|No CUDA_HOME|CUDA_HOME .*not set|g\+\+.*not found|"
                 r"Unable to JIT load", "an operator of the engine could not be built"),
    ("device", r"busy or unavailable|CUDA-capable device\(s\) is/are busy|device.*(?:exclusive|in use)",
               "the device is taken by another process"),
    ("peer", r"Connection (?:closed|reset) by peer|[Tt]imed out waiting|Watchdog caught collective|Broken pipe",
             "a rank that this one waited for is gone"),
    ("missing", r"No module named|MissingDependency", "something that the run needs is not installed"),
)  # fmt: skip


def broken(error: BaseException, rank: int, phase: str) -> Broken:
    """What an exception of a rank means."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError) or MEMORY.search(text):
        shared = others(text)
        reason = f"out of memory; {shared}" if shared else "out of memory"
        return Broken("memory", reason, rank, instant_of(phase), asked_bytes(text), text[:2000])
    if isinstance(error, NotImplementedError):
        return Broken("unsupported", str(error), rank, instant_of(phase))
    for kind, pattern, sentence in KINDS:
        if re.search(pattern, text):
            what = f"{sentence}: {_first_line(error)}" + (f" {advice(text)}" if kind == "compiler" else "")
            return Broken(kind, what, rank, instant_of(phase), None, text[:2000])
    return Broken("error", f"{type(error).__name__}: {_first_line(error)}", rank, instant_of(phase), None, text[:2000])


def ended(code: int, rank: int, phase: str, log: str = "") -> Broken:
    """What the exit of a process that left no result means. A negative code, or 128 + n, is a signal's."""
    number = -code if code < 0 else code - 128 if code > 128 else 0
    where = instant_of(phase)
    during = f" during {where}" if where else ""
    if number == signal.SIGKILL:
        return Broken("killed", f"rank {rank} was killed{during} (SIGKILL): by hand, or by the kernel for want of memory",
                      rank, where, None, log)  # fmt: skip
    if number:
        return Broken("died", f"rank {rank} died{during} ({signal.Signals(number).name})", rank, where, None, log)
    return Broken("died", f"rank {rank} ended with status {code}{during} and left no result", rank, where, None, log)


def asked_bytes(text: str) -> int | None:
    """What an allocation wanted, from the message of torch's allocator."""
    found = ASKED.search(text)
    return round(float(found[1]) * UNITS[found[2]]) if found else None


def instant_of(phase: str) -> str:
    """The instant of the contract in which a phase lies; empty before there is a model."""
    return {
        "build": "load",
        "start": "load",
        "import": "",
        "join": "",
        "simulate": "",
        "between": "step",
        "end": "",
    }.get(phase, phase)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
