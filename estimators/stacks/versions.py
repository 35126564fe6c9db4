"""Which versions are assumed: the user's, else the installed ones, else the newest that were checked."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import lru_cache

# Newest versions that the estimators were checked against; used where nothing is installed.
NEWEST: Mapping[str, str] = {
    "torch": "2.13.0", "transformers": "5.24.0", "accelerate": "1.15.0", "deepspeed": "0.19.8", "peft": "0.21.2",
    "bitsandbytes": "0.50.2", "trl": "1.16.0", "ms-swift": "4.6.0", "llamafactory": "0.9.5", "axolotl": "0.19.0",
    "torchtitan": "0.3.0", "torchtune": "0.6.1", "litgpt": "0.5.13", "mosaicml": "0.32.1",
    "liger-kernel": "0.8.2",
}  # fmt: skip
NOT_REENTRANT = "5"  # transformers: gradient_checkpointing_enable without arguments
_FOLDER = ".dist-info"  # <name>-<version>.dist-info


@lru_cache(maxsize=1)
def installed() -> Mapping[str, str]:
    """Versions of the packages of ``NEWEST`` on ``sys.path``, from folder names alone: no package is imported.

    The first folder on the path wins, as it does for ``import``. A local part (``+cpu``) is dropped.
    """
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            entries = os.listdir(folder or ".")
        except OSError:
            continue
        for entry in entries:
            if not entry.endswith(_FOLDER):
                continue
            name, _, version = entry.removesuffix(_FOLDER).partition("-")
            name = name.lower().replace("_", "-")
            if name in NEWEST and version[:1].isdecimal() and "-" not in version:
                found.setdefault(name, version.partition("+")[0])
    return found


def resolve(given: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Every package of ``NEWEST``: as given, else as installed, else newest."""
    return {**NEWEST, **installed(), **dict(given)}


@lru_cache(maxsize=1024)
def parsed(version: str) -> tuple[int, ...]:
    """Release numbers, enough to compare: ``2.13.0a0+git`` -> (2, 13, 0). No numbers: later than everything."""
    numbers: list[int] = []
    for piece in version.split("+")[0].split("."):
        digits = piece[: len(piece) - len(piece.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != piece:
            break
    return tuple(numbers) or (10**9,)


def at_least(version: str, minimum: str) -> bool:
    """Whether ``version`` is ``minimum`` or later; missing places count as zero.

    >>> at_least("1.15", "1.15.0"), at_least("0.19.8", "0.20"), at_least("2.13.0+cpu", "2.8")
    (True, False, True)
    """
    a, b = parsed(version), parsed(minimum)
    length = max(len(a), len(b))
    return a + (0,) * (length - len(a)) >= b + (0,) * (length - len(b))


def is_reentrant(trainer: bool, versions: Mapping[str, str]) -> bool:
    """Whether checkpointing, where it is on, runs blocks again on copies of their inputs (``use_reentrant``)."""
    return trainer and not at_least(versions["transformers"], NOT_REENTRANT)
