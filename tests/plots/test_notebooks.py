"""The example notebooks run from top to bottom, and show what they say that they show."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def executed(path: Path) -> Any:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), before)))
    try:
        client.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return notebook


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["deepspeed-or-fsdp", "first-question", "validating"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs(path: Path) -> None:
    pictures = text = ""
    for cell in executed(path).cells:
        for output in cell.get("outputs", ()):
            assert output.output_type != "error", output
            if output.output_type == "stream":
                assert output.name == "stdout", output.text
                text += output.text
            else:
                pictures += "".join(k + " " for k in output.data if k in ("image/png", "text/html"))
                text += output.data.get("text/html", "") + output.data.get("text/plain", "")
    assert "image/png" in pictures and "text/html" in pictures
    said = {
        "first-question": ("<svg", "zero3+optimizer@cpu+params@cpu", "files;"),
        "deepspeed-or-fsdp": ("the tree says deepspeed", "fsdp-full-shard needs", "measured cases"),
        "validating": ("'agrees', 2", "at the peak", "allocated: "),
    }
    for words in said[path.stem]:
        assert words in text, words


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_is_kept_without_outputs(path: Path) -> None:
    """Outputs would be old with the next change; a reader runs it."""
    nbformat = pytest.importorskip("nbformat")
    cells = nbformat.read(path, as_version=4).cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
