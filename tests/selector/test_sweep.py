"""Files, rows, and what an interruption leaves."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from estimators import InputError, UnknownName, estimate
from selector import sweep
from selector.cli import main
from selector.sweep import Partial, compute, row
from selector.sweep_file import read_sweep

YAML = """
models: [llama-3.2-1b, llama-8b]
gpus: [4xA10, 8xA100-80GB]
strategies: [ddp, zero3]
workload:
  seq_len: [512, 4096]
  checkpointing: full
"""
CSV = """model,gpus,strategy,seq_len,compile,host-memory
llama-8b,8xA100-80GB,zero3,2048,true,512GB
llama-8b,4xA10,,1024,,
"""


def file(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_yaml_is_multiplied_out(tmp_path: Path) -> None:
    found, digest = read_sweep(file(tmp_path, "a.yaml", YAML))
    assert len(found) == 2 * 2 * 2 * 2 and len(digest) == 64
    assert found[0].columns == {"model": "llama-3.2-1b", "gpus": "4xA10", "seq_len": 512, "checkpointing": "full"}
    assert {c.strategy for c in found} == {"ddp", "zero3"}


def test_csv_is_a_question_a_line(tmp_path: Path) -> None:
    found, _ = read_sweep(file(tmp_path, "a.csv", CSV))
    assert [c.strategy for c in found] == ["zero3", None]
    assert found[0].facts == (("host_memory", "512GB"),) and dict(found[0].fields) == {
        "seq_len": "2048",
        "compile": True,
    }


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("a.yaml", "models: [llama-8b]\n", InputError, "names no gpus"),
        ("a.yaml", "gpus: A10\n", InputError, "names no model"),
        ("a.yaml", "model: llama-8b\ngpus: A10\nseqlen: 4\n", UnknownName, "unknown key of a.yaml 'seqlen'"),
        ("a.yaml", "model: llama-8b\ngpus: A10\nworkload: {tokens: 4}\n", UnknownName, "workload field in a.yaml"),
        ("a.yaml", "model: llama-8b\ngpus: A10\nworkload: 4\n", InputError, "workload is 4"),
        ("a.yaml", "model: 8\ngpus: A10\n", InputError, "give a name or a list"),
        ("a.yaml", "model: [\n", InputError, "a.yaml"),
        ("a.csv", "model,seq_len\nllama-8b,4\n", InputError, "no column gpus"),
        ("a.csv", "model,gpus,seqlen\nllama-8b,A10,4\n", UnknownName, "unknown column of a.csv 'seqlen'"),
        ("a.csv", "model,gpus\nllama-8b\n", InputError, "line 2: model and gpus"),
        ("a.csv", "model,gpus\nllama-8b,A10,9\n", InputError, "line 2: more cells"),
        ("a.csv", "model,gpus\n", InputError, "asks nothing"),
    ],
)
def test_refuses(name: str, text: str, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        read_sweep(file(tmp_path, name, text))


def test_refuses_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_sweep(str(tmp_path / "no.yaml"))
    with pytest.raises(InputError, match="more than 1,000,000"):
        many = list(range(1, 1002))
        read_sweep(file(tmp_path, "m.yaml", f"model: m\ngpus: A10\nseq_len: {many}\nmicro_batch: {many}\n"))
    (tmp_path / "b.csv").write_bytes(b"model,gpus\n\xff,A10\n")
    with pytest.raises(InputError, match="not UTF-8"):
        read_sweep(str(tmp_path / "b.csv"))


def test_a_row_is_the_estimate(tmp_path: Path) -> None:
    asked = read_sweep(file(tmp_path, "a.yaml", YAML))[0][-1]
    found, direct = row(asked), estimate("llama-8b", "8xA100-80GB", "zero3", seq_len=4096, checkpointing="full")
    assert (found["verdict"], found["gpu_process_bytes"]) == (direct.verdict, round(direct.gpu.process.expected))
    assert found["error"] is None and found["strategy"] == "zero3"


def test_without_strategy_the_first_that_fits(tmp_path: Path) -> None:
    text = "model: [llama-3.2-1b, llama-8b, llama-70b]\ngpus: [8xA100-80GB, A10]\n"
    found = {(c.model, c.gpus): row(c) for c in read_sweep(file(tmp_path, "a.yaml", text))[0]}
    assert found["llama-3.2-1b", "8xA100-80GB"]["strategy"] == "ddp"
    assert found["llama-8b", "8xA100-80GB"]["verdict"] == "fits"
    assert "+" in str(found["llama-8b", "A10"]["strategy"])


def test_what_cannot_be_answered_is_a_row_with_the_reason(tmp_path: Path) -> None:
    text = "model: llama-8b\ngpus: 8xA100-80GB\nstrategy: [single, zero3]\n"
    wrong, right = (row(c) for c in read_sweep(file(tmp_path, "a.yaml", text))[0])
    assert "single is one GPU" in wrong["error"] and wrong["verdict"] is None and right["error"] is None


def test_interrupted_and_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, digest = read_sweep(file(tmp_path, "a.yaml", YAML))
    monkeypatch.setattr(sweep, "CHUNK", 4)
    place = str(tmp_path / "p")
    with Partial(place, digest, len(found)) as partial:
        running = compute(found, partial, 1)
        next(running), next(running), next(running)  # two chunks of four, then the interruption
    with open(place, "a", encoding="utf-8") as cut:
        cut.write('{"i": 9, "ro')
    computed: list[Any] = []
    monkeypatch.setattr(sweep, "rows", lambda chunk: computed.extend(chunk) or [row(c) for c in chunk])
    with Partial(place, digest, len(found)) as partial:
        assert len(partial.done) == 8
        assert list(compute(found, partial, 1))[-1] == len(found)
    assert len(computed) == len(found) - 8
    assert [partial.done[i] for i in range(len(found))] == [row(c) for c in found]
    with Partial(place, "another file", len(found)) as other:
        assert not other.done


def test_processes_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, digest = read_sweep(file(tmp_path, "a.yaml", YAML))
    monkeypatch.setattr(sweep, "CHUNK", 5)
    with Partial(str(tmp_path / "p"), digest, len(found)) as partial:
        assert list(compute(found, partial, 2))[-1] == len(found)
    assert [partial.done[i]["gpu_process_bytes"] for i in range(len(found))] == [
        row(c)["gpu_process_bytes"] for c in found
    ]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, "a.yaml", YAML)
    out = tmp_path / "out.csv"
    assert main(["sweep", path, "--format", "csv", "--out", str(out), "--processes", "1"]) == 0
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert len(rows) == 16 and rows[0]["model"] == "llama-3.2-1b"
    assert not (tmp_path / "a.yaml.partial").exists()
    assert main(["sweep", path, "--format", "json", "--processes", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "dist-advisor/sweep/1"
    assert main(["sweep", path, "--processes", "1"]) == 0
    assert "verdict" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [("model: llama-9z\ngpus: A10\n", "unknown model"), ("model: llama-8b\ngpus: 4xZ9\n", "unknown GPU")],
)
def test_unknown_names_stop_before_anything_is_computed(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", file(tmp_path, "a.yaml", text)]) == 2
    assert message in capsys.readouterr().err
    assert main(["sweep", file(tmp_path, "b.yaml", "model: llama-8b\ngpus: A10\n"), "--partial", "/no/where"]) == 2
