"""Calibration: what is measured, how it is kept, what it narrows - and that it never changes a tensor's size."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from estimators import estimate, parse_cluster
from estimators.calibration import Calibration, load
from estimators.errors import InputError, MissingDependency
from estimators.time import StepTime
from selector import recommend
from selector.cli import main
from selector.cli.parser import calibration_file
from validate import calibrate

CARD = "a100-80gb-sxm4"
# An A100 node as it was measured elsewhere: ml-engineering's 271 TFLOP/s, nccl-tests' 240 GB/s, ZeRO-Infinity's slot.
SAMPLES = {
    "matmul_flops_per_s": [270e12, 271.2e12, 272e12],
    "copy_bytes_per_s": [1.75e12, 1.76e12, 1.77e12],
    "link_bytes_per_s": [238e9, 240e9, 241e9],
    "host_copy_bytes_per_s": [9.8e9, 10e9, 10.1e9],
    "cpu_adam_params_per_s": [3.3e9, 3.5e9, 3.6e9],
    "context_bytes": [0.47 * 2**30],
    "communicator_bytes": [0.62 * 2**30],
    "reserve_ratio_fsdp2": [0.10, 0.12, 0.13],
    "reserve_ratio_deepspeed": [0.05],
}


@pytest.fixture
def own(tmp_path: Path) -> Calibration:
    path = str(tmp_path / "deep" / "calibration.json")
    calibrate.write(path, CARD, calibrate.profile(CARD, SAMPLES).entry())
    found = load(path, CARD)
    assert found is not None
    return found


def test_what_was_measured_is_read_back(own: Calibration) -> None:
    matmul = own.get("matmul_flops_per_s")
    assert matmul is not None and (matmul.low, matmul.value, matmul.high) == (270e12, 271.2e12, 272e12)
    assert own.get("network_bytes_per_s") is None and own.three("link_bytes_per_s") == (241e9, 240e9, 238e9)
    assert load(own.path, "t4") is None and load(own.path + ".not", CARD) is None
    calibrate.write(own.path, "t4", calibrate.profile("t4", {"context_bytes": [1e8]}).entry())
    assert load(own.path, "t4") and load(own.path, CARD) == own, "another card's entry stays"


@pytest.mark.parametrize(
    "strategy", ["ddp", "zero2", "zero3", "zero3+optimizer@cpu+params@cpu", "fsdp-full-shard", "fsdp1-full-shard"]
)
def test_it_narrows_and_never_changes_a_tensor(strategy: str, own: Calibration) -> None:
    plain, cluster = parse_cluster("8xA100-80GB"), parse_cluster("8xA100-80GB", calibration=own)
    for fields in ({}, {"method": "qlora"}, {"checkpointing": "none", "micro_batch": 2}):
        before, after = (
            estimate("llama-8b", plain, strategy, **fields),
            estimate("llama-8b", cluster, strategy, **fields),
        )
        assert before.instants == after.instants and before.gpu.allocated == after.gpu.allocated
        assert before.host == after.host and before.nvme_bytes == after.nvme_bytes
        assert isinstance(before.time, StepTime) and isinstance(after.time, StepTime)

        def width(found: Any) -> float:
            return float((found.high - found.low) / found.expected)

        assert width(after.time.step_seconds) < width(before.time.step_seconds)
        assert width(after.gpu.process) < width(before.gpu.process)
        assert any(own.path in note for note in after.notes) and not any(own.path in note for note in before.notes)


def test_offload_becomes_a_figure(own: Calibration) -> None:
    """CPU Adam's published interval is a factor of thirteen; on a machine that was measured it is what it is."""
    found = estimate(
        "llama-8b", parse_cluster("8xA100-80GB", calibration=own), "zero3+optimizer@cpu", stack="deepspeed"
    )
    assert isinstance(found.time, StepTime)
    part = next(p for p in found.time.parts if p.name == "CPU optimizer")
    assert part.seconds == pytest.approx(8.03e9 / 3.5e9 + 2 * 8.03e9 / 8 / 10e9, rel=0.01)
    context = next(o for o in found.gpu.runtime if o.name == "context")
    assert context.low == context.high == 0.47 * 2**30 and own.path in context.source


def test_another_card_is_not_touched(own: Calibration) -> None:
    for text in ("8xH100", "8xA100-40GB"):
        one = estimate("llama-8b", parse_cluster(text, calibration=own), "zero3")
        other = estimate("llama-8b", text, "zero3")
        assert isinstance(one.time, StepTime) and isinstance(other.time, StepTime)
        assert one.time.step_seconds == other.time.step_seconds and one.gpu == other.gpu and one.notes == other.notes


def test_a_card_without_a_rate_gets_a_time(own: Calibration) -> None:
    alone = Calibration("mine", own.date, own.path, own.values)
    cluster = parse_cluster("4xmine", gpu_memory="48GB", calibration=alone)
    assert isinstance(estimate("llama-3.2-1b", cluster, "zero2").time, StepTime)
    assert not isinstance(estimate("llama-3.2-1b", parse_cluster("4xmine", gpu_memory="48GB"), "zero2").time, StepTime)


def test_recommend_takes_it_as_a_fact_of_the_cluster(own: Calibration) -> None:
    answer = recommend("llama-8b", "8xA100-80GB", calibration=own)
    assert answer.estimate is not None and any(own.path in note for note in answer.estimate.notes)


def test_command_line_reads_names_and_leaves_it_out(
    own: Calibration, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    asked = ["estimate", "--model", "llama-8b", "--gpus", "8xA100-80GB", "--strategy", "zero3", "--format", "json"]

    def notes(*more: str) -> str:
        assert main([*asked, *more]) == 0
        return " ".join(json.loads(capsys.readouterr().out)["estimates"][0]["notes"])

    assert "calibrated" not in notes()
    os.makedirs(os.path.dirname(calibration_file()))
    os.replace(own.path, calibration_file())
    assert calibration_file() in notes() and "calibrated" not in notes("--no-calibration")
    plan = [
        "plan",
        "--model",
        "llama-8b",
        "--gpu",
        "A100-80GB",
        "--tokens",
        "1B",
        "--max-gpus",
        "8",
        "--strategy",
        "zero3",
    ]
    assert main(plan) == 0 and main([*plan, "--no-calibration"]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a calibration"),
        ('{"schema": "dist-advisor/calibration/1", "cards": {"a100-80gb-sxm4": 3}}', "no measured values"),
        ('{"schema": "dist-advisor/calibration/1", "cards": {"a100-80gb-sxm4": {"measured": {"matmul": {}}}}}', "unknown"),
        ('{"schema": "dist-advisor/calibration/1", "cards": {"a100-80gb-sxm4": {"measured": '
         '{"context_bytes": {"low": 2, "value": 1, "high": 3}}}}}', "low <= value <= high"),
        ('{"schema": "dist-advisor/calibration/1", "cards": {"a100-80gb-sxm4": {"measured": '
         '{"context_bytes": {"low": "NaN", "value": 1, "high": 3}}}}}', "low <= value <= high"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    os.makedirs(os.path.dirname(calibration_file()))
    Path(calibration_file()).write_text(text)
    assert main(["estimate", "--model", "llama-8b", "--gpus", "8xA100-80GB"]) == 2
    said = capsys.readouterr().err
    assert message in said and calibration_file() in said and "--no-calibration" in said
    with pytest.raises(InputError):
        calibrate.write(calibration_file(), CARD, calibrate.profile(CARD, SAMPLES).entry())


# ------------------------------------------------------------------------------------------------------- measuring


def test_samples_become_an_interval() -> None:
    found = calibrate.measured([float(n) for n in range(1, 101)])
    assert (found.low, found.value, found.high, found.n) == (11, 51, 91, 100)
    with pytest.raises(InputError, match="no samples"):
        calibrate.measured([])
    with pytest.raises(InputError, match="no such quantity"):
        calibrate.profile(CARD, {"speed": [1.0]})
    with pytest.raises(InputError, match="not peaks of one run"):
        calibrate.reserve_ratio(10, 9)


def test_products_and_copies_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on a GPU, on this machine's CPU: a product twice as wide costs about eight times as much."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        flops = [calibrate.measured(calibrate.matmul_flops("cpu", n, "float32", 5)).value for n in (256, 512)]
        assert all(1e8 < f < 1e13 for f in flops) and 0.2 < flops[1] / flops[0] < 5
        moved = calibrate.measured(calibrate.copy_bandwidth("cpu", 2**26, 5)).value
        assert 1e8 < moved < 1e12
    finally:
        torch.set_num_threads(threads)
    monkeypatch.setattr(calibrate, "timed", lambda *_: [0.5])
    assert calibrate.matmul_flops("cpu", 10, "float32") == [4000.0] and calibrate.copy_bandwidth("cpu", 400) == [1600.0]


def test_collectives_over_gloo() -> None:
    pytest.importorskip("torch")
    speeds, taken = calibrate.collective_bandwidth(2, "gloo", 2**22, samples=3, timeout=240)
    assert len(speeds) == 3 and all(1e5 < s < 1e12 for s in speeds) and not taken


def test_without_a_gpu_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(MissingDependency):
        calibrate.calibrate("nowhere.json")
    assert main(["validate", "--calibrate"]) == 3
    assert "no CUDA device" in capsys.readouterr().err and not os.path.exists("nowhere.json")
