"""What the path of `recommend` must not import, and how long asking again may take."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from selector import recommend

ROOT = Path(__file__).resolve().parent.parent.parent
HEAVY = ("torch", "transformers", "deepspeed", "accelerate", "matplotlib", "networkx", "numpy", "yaml")


@pytest.mark.parametrize(
    "statement",
    [
        "from selector import recommend; recommend('llama-8b', '8xA100-80GB').document()",
        "from selector.cli import main; main(['recommend', '--model', 'llama-8b', '--gpus', '4xA10'])",
        "from selector.cli import main; main(['fit', '--model', 'llama-8b', '--gpus', '4xA10', '--strategy', 'zero3'])",
        "from selector.cli import main; main(['tree', '--format', 'mermaid'])",
    ],
)
def test_no_heavy_library(statement: str) -> None:
    code = (
        f"import sys\n{statement}\nheavy = sorted(set({HEAVY!r}) & set(sys.modules))\nsys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_asking_again_is_instant() -> None:
    """All candidates for an 8B on eight GPUs: 0.3 s of processor time, another sequence length each time."""
    answer = recommend("llama-8b", "8xA100-80GB", team="pytorch")
    best = 9.0
    for tokens in (1024, 3072, 4096):
        start = time.process_time()
        answer.what_if(seq_len=tokens).document()
        best = min(best, time.process_time() - start)
    assert best <= 0.3
