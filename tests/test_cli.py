"""The command line as a user meets it: formats, files, exit statuses, and kind answers to bad input."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from selector.cli import main

ROOT = Path(__file__).resolve().parent.parent
QUESTION = ["--model", "llama-8b", "--gpus", "4xA10"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(list(arguments))
    out, err = capsys.readouterr()
    return status, out, err


def test_estimate_json_is_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "estimate", *QUESTION, "--format", "json")
    document = json.loads(out)
    assert status == 0 and document["schema"] == "dist-advisor/estimate/1"
    assert document["model"]["params"] == 8_030_261_248
    assert document["cluster"] == {
        **document["cluster"],
        "gpu": "A10",
        "gpus_per_node": 4,
        "nodes": 1,
        "host_memory_bytes": None,
    }
    first = document["estimates"][0]
    assert set(first) >= {
        "strategy",
        "engine",
        "verdict",
        "gpu",
        "peak_instant",
        "instants",
        "host",
        "nvme",
        "time",
        "notes",
    }
    assert set(first["gpu"]) == {"allocated_bytes", "reserved_bytes", "process_bytes", "capacity_bytes", "runtime"}
    for e in document["estimates"]:
        peak = next(i for i in e["instants"] if i["name"] == e["peak_instant"])
        assert sum(t["bytes"] for t in peak["terms"] if t["place"] == "gpu") == e["gpu"]["allocated_bytes"]["expected"]


@pytest.mark.parametrize("columns", ["80", "120", "200"])
def test_the_table_keeps_to_its_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = run(capsys, "estimate", *QUESTION)
    assert all(len(line) <= int(columns) for line in out.splitlines())
    assert "zero3+optimizer@nvme+params@nvme" in out and "\x1b" not in out


def test_csv_and_markdown_have_a_row_a_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "estimate", *QUESTION, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {r["strategy"] for r in rows} >= {"ddp", "zero3", "fsdp-full-shard"}
    _, out, _ = run(capsys, "estimate", *QUESTION, "--format", "markdown")
    assert out.count("\n") == len(rows) + 2


def test_out_writes_a_file_and_nothing_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "answer.json"
    status, out, _ = run(capsys, "estimate", *QUESTION, "--strategy", "zero3", "--format", "json", "--out", str(target))
    assert status == 0 and not out and json.loads(target.read_text())["estimates"][0]["strategy"] == "zero3"
    assert [p.name for p in tmp_path.iterdir()] == ["answer.json"]


def test_a_failure_leaves_an_old_file_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "answer.json"
    target.write_text("old")
    status, _, _ = run(capsys, "estimate", "--model", "nonsense-9b", "--gpus", "4xA10", "--out", str(target))
    assert status == 2 and target.read_text() == "old"


def test_explain_one_and_two(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "explain", *QUESTION, "zero2", "zero3", "--format", "json")
    document = json.loads(out)
    assert status == 0 and {"instant", "a_bytes", "b_bytes", "difference_bytes", "formula"} <= set(document["rows"][0])
    status, out, _ = run(capsys, "explain", *QUESTION, "zero2", "zero3")
    assert status == 0 and "needs" in out and "B - A" in out
    status, out, _ = run(capsys, "explain", *QUESTION, "fsdp", "--instant", "step")
    assert status == 0 and "optimizer states" in out


@pytest.mark.parametrize(
    "command", [["models"], ["models", "qwen"], ["gpus"], ["gpus", "a100"], ["strategies"], ["strategies", "zero3"]]
)
def test_catalogues(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    for form in ("table", "json", "csv", "markdown"):
        status, out, _ = run(capsys, *command, "--format", form)
        assert status == 0 and out
    assert json.loads(run(capsys, *command, "--format", "json")[1])["schema"] == f"dist-advisor/{command[0]}/1"


def test_sizes_of_the_catalogues(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(json.loads(run(capsys, "models", "--format", "json")[1])["rows"]) >= 80
    assert len(json.loads(run(capsys, "gpus", "--format", "json")[1])["rows"]) >= 38


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_scripts(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    status, out, _ = run(capsys, "completion", shell)
    assert status == 0 and "zero3-offload" in out and "estimate" in out


@pytest.mark.parametrize("config", [
    {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}, "bf16": {"enabled": True},
     "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8},
])  # fmt: skip
def test_the_users_own_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path, config: dict) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(config))
    status, out, _ = run(capsys, "estimate", *QUESTION, "--config", str(file), "--format", "json")
    document = json.loads(out)
    assert status == 0 and [e["strategy"] for e in document["estimates"]] == ["zero2+optimizer@cpu"]
    assert (document["workload"]["micro_batch"], document["workload"]["grad_accum"]) == (4, 8)


def test_require_fit_says_no_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "estimate", *QUESTION, "--strategy", "ddp", "--require-fit")[0] == 1
    assert run(capsys, "estimate", "--model", "gpt2", "--gpus", "4xA10", "--strategy", "ddp", "--require-fit")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["estimate", "--model", "lama-8b", "--gpus", "4xA10"], "did you mean"),
        (["estimate", "--model", "llama-8b", "--gpus", "4xA11"], "did you mean"),
        (["estimate", "--model", "llama-8b", "--gpus", "0xA10"], "0"),
        (["estimate", "--model", "llama-8b", "--gpus", "-4xA10"], "--gpus"),
        (["estimate", "--model", "llama-8b", "--gpus=-4xA10"], "-4xA10"),
        (["estimate", "--model", "llama-8b", "--gpus", "4xA10", "--strategy", "zero4"], "did you mean zero3"),
        (["estimate", "--model", "llama-8b", "--gpus", "4xA10", "--strategy", "zero2+params@cpu"], "stage 3 only"),
        (["estimate", "--model", "llama-8b", "--gpus", "4xA10", "--seq-len", "abc"], "not a whole number"),
        (["estimate", "--model", "llama-8b", "--gpus", "4xA10", "--seq-len", "-1"], "out of range"),
        (["estimate", "--model", "llama-8b", "--gpus", "4xA10", "--strateg", "zero3"], "did you mean --strategy"),
        (["estimate", "--model", "llama-8b"], "--gpus"),
        (["estimate", *QUESTION, "--format", "yaml"], "not one of table"),
        (["estimate", *QUESTION, "--host-memory", "lots"], "not a size"),
        (["estimate", *QUESTION, "--out", "/nowhere/at/all.json"], "no folder"),
        (["estimate", *QUESTION, "--config", "/nowhere.json"], "nowhere.json"),
        (["estimate", "--model", "llama-8b", "--gpus", "4xV100-32GB"], "bf16"),
        (["explain", *QUESTION, "ddp", "zero2", "zero3"], "one or two"),
        (["explain", *QUESTION, "ddp", "--instant", "lunch"], "unknown instant"),
        (["models", "zzzz"], "unknown model"),
        (["gpus", "zzzz"], "unknown GPU"),
        (["strategies", "zzzz"], "unknown strategy"),
        (["completion", "powershell"], "not one of bash"),
        (["estimat", "--model", "x"], "did you mean estimate"),
    ],
)
def test_bad_input_is_answered_in_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    status, out, err = run(capsys, *arguments)
    message = [line for line in err.splitlines() if line.startswith("dist-advisor:")]
    assert status == 2 and not out and len(message) == 1
    assert says in message[0] and "Traceback" not in err and "internal error" not in err


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\x00\xff\xfe", b"[1, 2]", b'{"zero_optimization": {"stage": 7}}', b"{" * 5000]
)
def test_damaged_configurations(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    for question in (["--config", str(file), *QUESTION], ["--model", str(file), "--gpus", "4xA10"]):
        status, out, err = run(capsys, "estimate", *question)
        assert status == 2 and not out and "Traceback" not in err and "internal error" not in err


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} {ROOT / 'dist_advisor.py'} models --format csv | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env={**os.environ})
    assert done.stdout.startswith("model,") and "Traceback" not in done.stderr


def test_help_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    from selector.cli.parser import COMMANDS

    for command in COMMANDS:
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0 and "example" in capsys.readouterr().out
