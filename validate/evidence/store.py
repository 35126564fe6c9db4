"""Measured rows on disk: one JSON object a line, appended."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

FILE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data", "simulated.jsonl")
PACKAGES = ("torch", "transformers", "deepspeed", "peft")


def rows(file: str = FILE) -> list[dict[str, Any]]:
    """Every row; of an id that was measured again the last one."""
    if not os.path.exists(file):
        return []
    with open(file, encoding="utf-8") as stream:
        found = {row["id"]: row for row in map(json.loads, stream)}
    return list(found.values())


def append(row: Mapping[str, Any], file: str = FILE) -> None:
    with open(file, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


def versions() -> dict[str, str]:
    return {package: version(package) for package in PACKAGES}
