"""Every engine in every mode on tiny folders: real ranks agree with the estimate, the other modes with real ranks."""

from __future__ import annotations

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
pytest.importorskip("deepspeed")


def folder_of(path: Path, strategy: str, ranks: int = 2, **workload: object) -> Path:
    """An emitted folder of a tiny Llama."""
    asked = {"stack": "deepspeed" if strategy.startswith("zero") else "torch", "seq_len": 32, **workload}
    asked = {"checkpointing": "none", **asked}
    emit(estimate({**LLAMA, "architectures": ["LlamaForCausalLM"]}, f"{ranks}xA10", strategy, **asked), path)
    return path


SMALL = "reduce_bucket_size=100000"
HERE = f"{SMALL},param_persistence_threshold=0,prefetch_bucket_size=0"
CELLS: dict[str, tuple[str, dict[str, object]]] = {
    "ddp": ("ddp", {}),
    "fsdp1": ("fsdp1-full-shard", {}),
    "fsdp1-lora": ("fsdp1-full-shard", {"method": "lora", "lora_rank": 4}),
    "fsdp2": ("fsdp-full-shard", {}),
    "fsdp2-grad-op": ("fsdp-shard-grad-op", {}),
    "fsdp2-offload": ("fsdp-full-shard+params@cpu", {}),
    "fsdp2-lora": ("fsdp-full-shard", {"method": "lora", "lora_rank": 4}),
    "fsdp2-accumulates": ("fsdp-full-shard", {"grad_accum": 2}),
    "fsdp2-checkpointing": ("fsdp-full-shard", {"checkpointing": "full"}),
    "fsdp2-hybrid": ("fsdp-hybrid-shard:shard=2", {"ranks": 4}),
    "zero0": ("zero0", {}),
    "zero1": (f"zero1:{SMALL}", {}),
    "zero2": (f"zero2:{SMALL}", {}),
    "zero2-offload": (f"zero2:{SMALL}+optimizer@cpu", {}),
    "zero3": (f"zero3:{HERE},max_reuse_distance=0", {}),
    "zero3-checkpointing": ("zero3:reduce_bucket_size=50000,max_reuse_distance=0", {"checkpointing": "full"}),
    "zero3-head-above-the-bucket": (f"zero3:{HERE.replace(SMALL, 'reduce_bucket_size=50000')}", {}),
}
STEADY = ("params", "gradients", "master", "optimizer", "buffers")
SIMULATED = tuple(name for name in CELLS if "offload" not in name)  # with offload a CPU is device and host


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Report]]:
    """Mode -> cell -> report; ranks are started once for a mode and a number of them."""
    place = tmp_path_factory.mktemp("runs")
    asked = {name: read(folder_of(place / name, how, **fields)) for name, (how, fields) in CELLS.items()}  # type: ignore[arg-type]
    found: dict[str, dict[str, Report]] = {}
    for mode in ("cpu", "rehearse", "simulate"):
        names = SIMULATED if mode == "simulate" else tuple(CELLS)
        found[mode] = {}
        for ranks in (2, 4):
            here = [name for name in names if CELLS[name][1].get("ranks", 2) == ranks]
            made = [session.plan(asked[name], mode, ranks) for name in here]
            found[mode] |= dict(zip(here, session.answers(made, 300.0), strict=True))
            # gloo's thread may hold a buffer a moment longer: what differs runs once more
            again = [name for name in here if mode == "cpu" and found[mode][name].status == "differs"]
            if again:
                made = [session.plan(asked[name], mode, ranks) for name in again]
                found[mode] |= dict(zip(again, session.answers(made, 300.0), strict=True))
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


def holds_the_same(found: Report, real: Report) -> None:
    assert found.failure is None, str(found.failure)
    for instant in ("forward", "backward", "reduce", "step"):
        ours, theirs = bytes_of(found, instant), bytes_of(real, instant)
        assert near(ours, theirs), (instant, ours, theirs)
    steady = [{c: bytes_of(r, "step").get(c, 0) for c in STEADY} for r in (found, real)]
    assert steady[0] == steady[1]


@pytest.mark.engines
@pytest.mark.parametrize("name", CELLS)
def test_a_real_run_agrees(reports: dict[str, dict[str, Report]], name: str) -> None:
    report = reports["cpu"][name]
    assert report.failure is None, str(report.failure)
    assert report.ranks == len(report.rss_bytes) == CELLS[name][1].get("ranks", 2)
    off = [row for row in report.rows if not row.agrees]
    assert report.status == "agrees", (report.error, off)


@pytest.mark.engines
@pytest.mark.parametrize("name", CELLS)
def test_a_rehearsal_holds_what_gloo_holds(reports: dict[str, dict[str, Report]], name: str) -> None:
    holds_the_same(reports["rehearse"][name], reports["cpu"][name])


@pytest.mark.engines
@pytest.mark.parametrize("name", SIMULATED)
def test_a_simulation_holds_what_gloo_holds(reports: dict[str, dict[str, Report]], name: str) -> None:
    holds_the_same(reports["simulate"][name], reports["cpu"][name])


def test_accelerates_own_loader_says_what_it_read(tmp_path: Path) -> None:
    """The YAML says something else than the plan: the engine is built from the YAML, and the note says so."""
    pytest.importorskip("accelerate")
    from validate.accelerate_yaml import as_read

    folder = folder_of(tmp_path / "run", "fsdp-full-shard", stack="accelerate")
    asked = read(folder)
    yaml = folder / "accelerate.yaml"
    assert asked.accelerate == yaml
    run, notes = as_read(yaml, asked.run("cpu"))
    assert run.strategy.name == "fsdp-full-shard" and run.settings.knobs["reshard_after_forward"] is True
    assert "its own loader read accelerate.yaml (FSDP2, reshard_after_forward True, mixed precision bf16)" in notes[0]
    text = yaml.read_text()
    yaml.write_text(text.replace("fsdp_reshard_after_forward: true", "fsdp_reshard_after_forward: false"))
    assert as_read(yaml, asked.run("cpu"))[0].strategy.sharding == "shard-grad-op"
