"""How fast a node's CPU steps an optimizer, from its cores and its DRAM: formula O.3 of ``docs/formulas-time.md``."""

from __future__ import annotations

from functools import lru_cache

from estimators.time.constants import ADAM_BYTES, CORE_ADAM, DRAM_SHARE


@lru_cache(maxsize=64)
def described_adam(cores: int | None, dram_bytes_per_s: float | None) -> tuple[float, float, float] | None:
    """Parameters/s, (fast, expected, slow): DRAM bandwidth / 30 bytes, at most what the cores do; None where neither is given.

    2 x Xeon 8168, 48 cores and 256 GB/s: 3.9 G parameters/s of the published 3.3-4.5.

    >>> round((described_adam(48, 256e9) or (0, 0, 0))[1] / 1e9, 1)
    3.9
    """
    scales = []
    if dram_bytes_per_s is not None:
        scales.append((DRAM_SHARE, dram_bytes_per_s / ADAM_BYTES))
    if cores is not None:
        scales.append((CORE_ADAM, float(cores)))
    if not scales:
        return None
    return (
        min(c.high * scale for c, scale in scales),
        min(c.value * scale for c, scale in scales),
        min(c.low * scale for c, scale in scales),
    )
