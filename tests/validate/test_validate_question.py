"""What ``validate`` reads of a folder, what it refuses, and how it makes a run small enough. No engine starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from estimators import estimate
from estimators.errors import AdvisorError, InputError, MissingDependency, NotModelled
from estimators.memory import resolve
from selector.cli import main
from selector.configs import emit
from validate import modes, session
from validate.depth import at_depth, depth_of
from validate.question import read
from validate.report import Report
from validate.scaling import SHARE, fitted, needed_bytes, on_ranks
from validate.session import plan

DS = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}


def test_an_emitted_folder_is_the_run_that_was_emitted(tmp_path: Path) -> None:
    given = estimate("llama-8b", "2x8xH100", "zero3", stack="deepspeed", micro_batch=2, seq_len=1024, optimizer="adamw")
    emit(given, tmp_path)
    asked = read(tmp_path)
    assert asked.run("cuda").settings.knobs == given.run.settings.knobs
    assert asked.run("cuda").workload == given.run.workload
    assert (asked.cluster.nodes, asked.cluster.gpus_per_node, asked.entry) == (2, 8, "deepspeed")
    assert asked.deepspeed is not None and asked.deepspeed["zero_optimization"]["stage"] == 3
    assert read(tmp_path, seq_len=64).workload.seq_len == 64


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(DS))
    (tmp_path / "notes.json").write_text('{"anything": 1}')
    asked = read(tmp_path, model="llama-8b", gpus="4xA10", seq_len=512)
    assert (asked.strategy.name, asked.workload.micro_batch, asked.workload.seq_len) == ("zero2", 2, 512)
    assert asked.entry == "deepspeed" and asked.deepspeed == DS


@pytest.mark.parametrize(
    ("files", "fields", "message"),
    [
        ({}, {}, "has no plan.json; name the model with --model"),
        ({}, {"model": "llama-8b"}, "no DeepSpeed JSON, accelerate YAML or TrainingArguments; name one with --config"),
        ({"a.json": DS, "b.json": DS}, {"model": "llama-8b"}, "has no plan.json but a.json, b.json"),
        ({"ds.json": DS}, {"model": "llama-8b"}, "does not say how many GPUs there are"),
        ({"plan.json": {"schema": "other"}}, {}, "expected dist-advisor/plan/1"),
        ({"plan.json": {"schema": "dist-advisor/plan/1"}}, {}, "missing; emit the folder again"),
    ],
)
def test_folders_that_cannot_be_used(tmp_path: Path, files: dict, fields: dict, message: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_text(json.dumps(data))
    with pytest.raises(InputError, match=message):
        read(tmp_path, **fields)


def test_a_plan_names_files_of_its_own_folder_only(tmp_path: Path) -> None:
    emit(estimate("llama-8b", "8xH100", "zero3", stack="deepspeed"), tmp_path / "run")
    path = tmp_path / "run" / "plan.json"
    data = json.loads(path.read_text())
    data["entry"]["config_files"] = ["../elsewhere.json"]
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match="lies outside the folder"):
        read(tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nowhere"], 2, "is not a folder"),
        ([], 2, "name a folder"),
        (["{run}", "--mode", "fast"], 2, "mode 'fast' is not one of auto, gpu, cpu, simulate, rehearse"),
        (["{run}", "--mode", "gpu"], 3, "mode gpu needs 8 GPUs and torch sees 0"),
        (["{run}", "--nproc", "0"], 2, "give at least 1"),
        (["{run}", "--layers", "99"], 2, "Llama-3.1-8B has 32"),
        (["{run}", "--timeout", "0"], 2, "give seconds, more than 0"),
        (["{run}", "--mode", "simulate", "--snapshot", "x.pickle"], 3, "has no GPU"),
        (["{run}", "--loss", "fused"], 2, "does not start a run with loss fused"),
    ],
)
def test_exit_status_and_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int,
    message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("validate.session.cards", modes.Cards)
    emit(estimate("llama-8b", "8xH100", "zero3", stack="deepspeed"), tmp_path / "run")
    before = sorted(p.name for p in (tmp_path / "run").iterdir())
    assert main(["validate", *(a.format(run=tmp_path / "run") for a in arguments)]) == status
    said = capsys.readouterr()
    assert message in said.err and "Traceback" not in said.err and not said.out
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == before


# -- modes -----------------------------------------------------------------------------------------------------------


def test_auto_takes_the_best_that_is_there() -> None:
    assert modes.chosen("auto", 8, modes.Cards(8), False)[0] == "gpu"
    assert modes.chosen("auto", 16, modes.Cards(8), True)[0] == "gpu"
    assert modes.chosen("auto", 8, modes.Cards(1), False)[0] == "rehearse"
    mode, why = modes.chosen("auto", 8, modes.Cards(), False)
    assert mode == "simulate" and "no GPU is visible" in why
    with pytest.raises(MissingDependency, match="needs 8 GPUs and torch sees 1"):
        modes.chosen("gpu", 8, modes.Cards(1), False)


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}, (3, 16, 3, 8)),
        ({"SLURM_PROCID": "9", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "8"}, (9, 16, 1, 8)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
          "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, (1, 2, 1, 2)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_launchers_are_recognised(environment: dict[str, str], found: tuple[int, ...] | None) -> None:
    assert modes.launched(environment) == found


# -- scaling ---------------------------------------------------------------------------------------------------------


def test_blocks_go_first_and_only_as_many_as_memory_demands() -> None:
    run = on_ranks(resolve("llama-8b", "8xH100", "zero3", "cpu", stack="deepspeed"), 2)
    memory = 64 * 2**30
    made, scaled = fitted(run, 2, memory, at_depth, depth_of(run.model))
    assert set(scaled) == {"layers"} and scaled["layers"] == (32, depth_of(made.model))
    assert needed_bytes(made, 2) <= SHARE * memory < needed_bytes(at_depth(run, scaled["layers"][1] + 1), 2)


def test_what_fits_is_not_scaled_and_what_never_fits_is_said() -> None:
    run = on_ranks(resolve("gpt2", "2xA10", "ddp", "cpu", stack="torch", seq_len=64), 2)
    assert fitted(run, 2, 2**40, at_depth, depth_of(run.model)) == (run, {})
    with pytest.raises(InputError, match="GiB of RAM on 2 ranks"):
        fitted(run, 2, 2**30, at_depth, depth_of(run.model))


def test_what_is_not_started_is_refused(tmp_path: Path) -> None:
    emit(estimate("llama-8b", "8xH100", "fsdp-full-shard", stack="torch", compile=True), tmp_path)
    with pytest.raises(NotModelled, match="does not start a run with compile True"):
        plan(read(tmp_path))
    assert issubclass(NotModelled, AdvisorError)


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_a_run_on_a_card_becomes_a_case_that_is_scored(tmp_path: Path) -> None:
    from validate.published import evaluate
    from validate.published_cases import read as cases
    from validate.save_case import append

    given = estimate("llama-8b", "8xH100", "zero3", stack="deepspeed", seq_len=1024)
    counters = {"step": {"allocated_bytes": 30 * 2**30, "reserved_bytes": 33 * 2**30}}
    report = Report("gpu", "zero3", 8, "cuda", "agrees", given, counters=counters, step_seconds=0.5,
                    versions={"torch": "2.13.0"})  # fmt: skip
    append(report, str(tmp_path / "own.jsonl"))
    row = json.loads((tmp_path / "own.jsonl").read_text())
    assert row["measured"] == {"oom": False, "allocated_gib": 30.0, "reserved_gib": 33.0, "step_seconds": 0.5,
                               "tokens_per_s_per_gpu": 2048.0}  # fmt: skip
    assert row["cluster"] == {"gpu": "H100", "gpus": 8, "nodes": 1}
    scored = evaluate(cases(str(tmp_path / "own.jsonl")))
    assert scored is not None
    with pytest.raises(InputError, match="keeps what a GPU measured"):
        append(Report("cpu", "zero3", 2, "cpu", "agrees", given), str(tmp_path / "own.jsonl"))


def test_a_snapshot_says_the_category_of_each_allocation() -> None:
    from validate.snapshot import named

    found = named(
        {"device_traces": [[{"action": "alloc", "addr": 64, "frames": [{"name": "mm"}]}, {"action": "free_requested",
         "addr": 64}]], "segments": [{"blocks": [{"address": 64}, {"address": 128}]}]},
        {64: "gradients"},
    )  # fmt: skip
    assert [f["name"] for f in found["device_traces"][0][0]["frames"]] == ["gradients", "mm"]
    assert found["segments"][0]["blocks"][0]["frames"][0]["name"] == "gradients"
    assert "frames" not in found["segments"][0]["blocks"][1]


@pytest.mark.parametrize("arguments", [["made"], ["--self-check"]])
def test_without_torch_it_says_what_to_install(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    emit(estimate("gpt2", "2xA10", "ddp"), tmp_path / "made")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    assert main(["validate", *arguments]) == 3
    assert "pip install 'dist-advisor[engines]'" in capsys.readouterr().err
