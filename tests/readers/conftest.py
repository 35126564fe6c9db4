"""A configuration written to a file and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from estimators.readers import Reading, read_config


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Reading]:
    """``read(data)`` writes JSON, ``read(text)`` YAML; other keywords go to ``read_config``."""

    def write_and_read(data: Any, name: str = "", **options: Any) -> Reading:
        path = tmp_path / (name or ("config.yaml" if isinstance(data, str) else "config.json"))
        path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
        return read_config(path, **options)

    return write_and_read
