"""Bytes in code, GiB only where a person reads.

1 GiB = 2**30 bytes, 1 GB = 10**9 bytes: both are accepted on input, as written; output is always GiB.
"""

from __future__ import annotations

import re

from estimators.errors import InputError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([a-z]*)\s*"
MAX_BYTES = 2**60  # 1 EiB: more than any host or disk; a larger figure is a slip


def parse_bytes(text: str | int | float, what: str = "size") -> int:
    """``"512GB"`` -> 512_000_000_000; ``"24GiB"`` -> 25_769_803_776; an int is bytes already.

    Raises ``InputError`` for anything that is not a positive, finite size below 1 EiB.
    """
    match = re.fullmatch(_SIZE, str(text), re.IGNORECASE)
    unit = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise InputError(f"{what}: {text!r} is not a size; write it like 512GB, 80GiB or 4TB")
    value = float(match.group(1)) * unit
    if not 0 < value < MAX_BYTES:
        raise InputError(f"{what}: {text!r} is out of range; give more than 0 and less than 1 EiB")
    return round(value)


def gib(num_bytes: float, digits: int = 2) -> str:
    """Bytes as a GiB figure for people, without the unit: ``gib(3 * 2**29) == '1.50'``."""
    return f"{num_bytes / GIB:,.{digits}f}"


def readable(num_bytes: int) -> str:
    """Bytes with the binary unit that keeps three digits: ``readable(1536) == '1.50 KiB'``."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(num_bytes) >= unit:
            return f"{num_bytes / unit:,.2f} {name}"
    return f"{num_bytes} B"


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest integer that is not below ``numerator / denominator``."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """``value`` rounded up to a multiple: ``round_up(5, 4) == 8``."""
    return ceil_div(value, multiple) * multiple


def power_of_two(value: int) -> int:
    """Smallest power of two that is not below ``value`` (pinned host blocks are rounded so)."""
    return 1 << max(value - 1, 0).bit_length()
