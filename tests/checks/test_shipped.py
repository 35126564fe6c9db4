"""No error on configurations that the engines and their users ship as examples.

``configs/shipped.jsonl`` restates the facts of such files (keys that bear on the checks), each with its source; taken
on 2026-11-30. An error there is a false alarm unless the installed DeepSpeed refuses the file itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selector.checks import check_files
from selector.checks.machine import Machine

ROWS = [json.loads(line) for line in (Path(__file__).parent / "configs/shipped.jsonl").read_text("utf-8").splitlines()]
REFUSED = ("OneBit", "Onebit", "ZeroOne", "progressive_layer_drop", "sparse_attention", "compression_training")


@pytest.mark.parametrize("row", ROWS, ids=[row["source"] for row in ROWS])
def test_no_error(row: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(row["data"]), encoding="utf-8")
    errors = [f for f in check_files([file], machine=Machine()) if f.severity == "error"]
    if any(word in json.dumps(row["data"]) for word in REFUSED):
        assert {f.rule for f in errors} <= {"onebit-with-zero", "ds-unknown-key"}  # gone from DeepSpeed 0.19.8
    else:
        assert not errors
