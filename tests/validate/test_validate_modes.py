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
from validate import session
from validate.cells.models import LLAMA
from validate.question import read
from validate.report import Report

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


# -- every engine in every mode --------------------------------------------------------------------------------------

SMALL = "reduce_bucket_size=50000"
CELLS: dict[str, tuple[str, dict[str, object]]] = {
    "fsdp": ("fsdp-full-shard", {"optimizer": "adamw-fused"}),
    "fsdp1": ("fsdp1-full-shard", {"optimizer": "adamw-fused"}),
    "accelerate": ("fsdp-full-shard", {"stack": "accelerate"}),
    "trainer": ("ddp", {"stack": "trainer", "checkpointing": "full", "grad_accum": 2}),
    "zero2-offload": (f"zero2:{SMALL}+optimizer@cpu", {}),
    "zero3": (f"zero3:{SMALL},param_persistence_threshold=0", {"grad_accum": 2}),
}
STEADY = ("params", "gradients", "master", "optimizer", "buffers")
# what a simulation has no word for: accelerate's upcasting and outputs, two steps that one process takes as one
NOT_SIMULATED = ("accelerate", "trainer", "zero2-offload")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Report]]:
    """Mode -> cell -> report; the ranks are started once a mode."""
    place = tmp_path_factory.mktemp("runs")
    asked = {name: read(folder_of(place / name, strategy, **fields)) for name, (strategy, fields) in CELLS.items()}
    found: dict[str, dict[str, Report]] = {}
    for mode in ("cpu", "rehearse", "simulate"):
        names = [name for name in CELLS if mode != "simulate" or name not in NOT_SIMULATED]
        made = [session.plan(asked[name], mode) for name in names]
        found[mode] = dict(zip(names, session.answers(made, 200.0), strict=True))
    return found


def bytes_of(report: Report, instant: str) -> dict[str, int]:
    return {
        row.category: row.measured
        for row in report.rows
        if row.instant == instant and row.place == "gpu" and row.measured and row.category != "all"
    }


def near(ours: dict[str, int], theirs: dict[str, int]) -> bool:
    return all(
        abs(ours.get(c, 0) - theirs.get(c, 0)) <= max(64 * 2**10, theirs.get(c, 0) // 100) for c in {*ours, *theirs}
    )


@pytest.mark.engines
@pytest.mark.parametrize("name", CELLS)
def test_a_real_run_agrees(reports: dict[str, dict[str, Report]], name: str) -> None:
    report = reports["cpu"][name]
    assert report.failure is None, str(report.failure)
    assert report.ranks == 2 and len(report.rss_bytes) == 2
    assert report.error is not None and abs(report.error) <= 0.03
    off = [row for row in report.rows if not row.agrees and (row.instant == "step" or row.category == "all")]
    assert not off


@pytest.mark.engines
@pytest.mark.parametrize("name", CELLS)
def test_a_rehearsal_holds_what_gloo_holds(reports: dict[str, dict[str, Report]], name: str) -> None:
    rehearsed, real = reports["rehearse"][name], reports["cpu"][name]
    assert rehearsed.failure is None, str(rehearsed.failure)
    for instant in ("forward", "backward", "reduce", "step"):
        ours, theirs = bytes_of(rehearsed, instant), bytes_of(real, instant)
        assert near(ours, theirs), (instant, ours, theirs)
    steady = [{c: bytes_of(r, "step").get(c, 0) for c in STEADY} for r in (rehearsed, real)]
    assert steady[0] == steady[1]


@pytest.mark.engines
@pytest.mark.parametrize("name", [name for name in CELLS if name not in NOT_SIMULATED])
def test_a_simulation_holds_what_gloo_holds(reports: dict[str, dict[str, Report]], name: str) -> None:
    simulated, real = reports["simulate"][name], reports["cpu"][name]
    assert simulated.failure is None, str(simulated.failure)
    for instant in ("forward", "backward", "reduce", "step"):
        ours, theirs = bytes_of(simulated, instant), bytes_of(real, instant)
        assert near(ours, theirs), (instant, ours, theirs)
    steady = [{c: bytes_of(r, "step").get(c, 0) for c in STEADY} for r in (simulated, real)]
    assert steady[0] == steady[1]


@pytest.mark.engines
def test_accelerates_own_loader_says_what_it_read(reports: dict[str, dict[str, Report]]) -> None:
    notes = reports["cpu"]["accelerate"].notes
    assert any("its own loader read accelerate.yaml (FSDP2, reshard_after_forward True" in note for note in notes)
