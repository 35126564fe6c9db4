"""CUDA's out-of-memory message, in the wordings of torch 1.x, 2.0 and 2.1 to 2.13."""

from __future__ import annotations

import re

from estimators.units import parse_bytes
from estimators.values import dataclass

_SIZE = r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?(bytes|[KMGT]iB)"
_TRIED = re.compile(rf"out of memory\. Tried to allocate {_SIZE}")
_FIELDS = {
    # torch < 2.1: (GPU 0; 15.78 GiB total capacity; 13.26 GiB already allocated; 1.02 GiB free; 13.63 GiB reserved
    "capacity": (rf"{_SIZE} total capacity", rf"total capac(?:i?t)y of {_SIZE}"),
    "free": (rf"{_SIZE} free;", rf"of which {_SIZE} is free"),
    "allocated": (rf"{_SIZE} already allocated", rf"Of the allocated memory {_SIZE} is allocated by PyTorch"),
    "reserved": (rf"{_SIZE} reserved in total", rf"NO SUCH {_SIZE}"),
    "unallocated": (rf"NO SUCH {_SIZE}", rf"{_SIZE} is reserved by PyTorch but unallocated"),
    "process": (rf"NO SUCH {_SIZE}", rf"this process has {_SIZE} memory in use"),
}
_COMPILED = {name: tuple(map(re.compile, patterns)) for name, patterns in _FIELDS.items()}
_OTHERS = re.compile(rf"Process \d+ has {_SIZE} memory in use")
REACH = 1500  # characters of one message
OWN_BESIDE = 3 * 2**30  # context and communicators of a process, beside what torch's allocator reserved
FRAGMENTED = 0.1  # of the card, reserved and unallocated


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """One message, in bytes; None where the wording has no such number."""

    tried: int
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None
    unallocated: int | None = None  # reserved by the allocator, in no tensor
    process: int | None = None
    others: int = 0  # of other processes on the card

    @property
    def is_fragmented(self) -> bool:
        """The request would fit into what lies reserved and unused, or that is a tenth of the card."""
        waste = self.unallocated or 0
        return waste >= self.tried or bool(self.capacity and waste > FRAGMENTED * self.capacity)

    @property
    def shortage(self) -> int:
        """Bytes that were missing."""
        return max(self.tried - (self.free or 0), 0)


def out_of_memory(text: str) -> OutOfMemory | None:
    """The first message of a log (later ranks repeat it); None when there is none.

    >>> out_of_memory("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity;").tried
    2147483648
    """
    match = _TRIED.search(text)
    if match is None:
        return None
    message = text[match.start() : match.start() + REACH]
    found = {name: _first(patterns, message) for name, patterns in _COMPILED.items()}
    reserved = found.pop("reserved")
    if reserved is not None and found["allocated"] is not None:
        found["unallocated"] = reserved - found["allocated"]
    others = [parse_bytes(f"{m[1]}{m[2]}") for m in _OTHERS.finditer(message) if float(m[1])]
    if found["process"] is None:
        found["process"] = _own(others, found["allocated"], found["unallocated"])
    return OutOfMemory(_bytes(match), others=sum(others), **found)


def _own(others: list[int], allocated: int | None, unallocated: int | None) -> int | None:
    """In a container the message names the failed process by a number too: the one that holds what torch reserved and a
    context. It is taken from ``others``."""
    reserved = (allocated or 0) + (unallocated or 0)
    near = [size for size in others if reserved and 0 <= size - reserved <= OWN_BESIDE]
    if not near:
        return None
    others.remove(own := min(near))
    return own


def _first(patterns: tuple[re.Pattern[str], ...], message: str) -> int | None:
    for pattern in patterns:
        if match := pattern.search(message):
            return _bytes(match)
    return None


def _bytes(match: re.Match[str]) -> int:
    number, unit = match[1], match[2]
    return round(float(number)) if unit == "bytes" else parse_bytes(f"{number}{unit}") if float(number) else 0
