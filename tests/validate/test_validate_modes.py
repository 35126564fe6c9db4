"""``dist-advisor validate`` on a tiny emitted folder: what each mode answers, and whose modules the ranks run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from estimators import estimate
from selector.configs import emit
from validate.cells.models import LLAMA

pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[2]


def folder_of(path: Path, strategy: str, **workload: object) -> Path:
    """An emitted folder of a tiny Llama on two ranks."""
    asked = {"stack": "deepspeed" if strategy.startswith("zero") else "torch", "seq_len": 32, **workload}
    emit(estimate({**LLAMA, "architectures": ["LlamaForCausalLM"]}, "2xA10", strategy, **asked), path)
    return path


def command(*arguments: object, cwd: Path, first: str = "") -> subprocess.CompletedProcess[str]:
    """The command as a user starts it; ``first`` stands before it on the import path."""
    start = f"import sys; sys.path[:0] = {[first] if first else []!r}; sys.path.append({str(ROOT)!r})\n"
    return subprocess.run(
        [sys.executable, "-P", "-c", f"{start}import dist_advisor; sys.exit(dist_advisor.main())", "validate",
         *map(str, arguments)],
        cwd=cwd, env={**os.environ, "PYTHONPATH": first}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.engines
def test_ranks_run_their_own_modules(tmp_path: Path) -> None:
    """Foreign modules of all three names in the working folder and on PYTHONPATH; the real run agrees nevertheless."""
    folder = folder_of(tmp_path / "run", "fsdp-full-shard")
    for name in ("validate", "selector", "estimators"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('foreign')\n")
    done = command("run", "--mode", "cpu", "--format", "json", cwd=tmp_path, first=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "validate.py" in done.stderr
    report = json.loads(done.stdout)
    assert (report["schema"], report["status"], report["mode"]) == ("dist-advisor/validation/1", "agrees", "cpu")
    assert (report["strategy"], report["ranks"], report["device"], report["scaled"]) == (
        "fsdp-full-shard",
        2,
        "cpu",
        None,
    )
    assert json.loads((folder / "validation.json").read_text()) == report
