"""Files, rows, and what an interruption leaves."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
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


ROOT = Path(__file__).resolve().parent.parent.parent
MANY = """
models: [llama-3.2-1b, llama-8b, qwen2.5-7b]
gpus: [4xA10, 8xA100-80GB, 2x8xH100]
workload:
  seq_len: [512, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192]
  micro_batch: [1, 2, 3, 4, 5, 6, 7, 8]
  checkpointing: [none, full]
"""


def children(pid: int) -> list[int]:
    """Processes whose parent is ``pid``."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            found += [int(place.name)] if int((place / "stat").read_text().rpartition(")")[2].split()[1]) == pid else []
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="counts processes in /proc")
def test_the_command_is_interrupted_and_killed_and_loses_nothing(tmp_path: Path) -> None:
    """1728 combinations on two processes: Ctrl-C, then SIGKILL, then to the end; every row that was written is kept."""
    path, out = file(tmp_path, "many.yaml", MANY), str(tmp_path / "out.csv")
    partial = tmp_path / "many.yaml.partial"
    command = [sys.executable, str(ROOT / "dist_advisor.py"), "sweep", path, "--format", "csv", "--out", out,
               "--processes", "2", "-q"]  # fmt: skip

    def rows_kept() -> int:
        return max(0, len(partial.read_text().splitlines()) - 1) if partial.exists() else 0

    def started(until: int) -> subprocess.Popen[str]:
        running = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
        end = time.monotonic() + 90
        while rows_kept() < until and running.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        assert running.poll() is None, running.communicate()
        return running

    first = started(64)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does: the parent and its workers
    said = first.communicate(timeout=60)[1]
    assert first.returncode == 130 and "interrupted" in said and "Traceback" not in said
    kept = rows_kept()
    assert 64 <= kept < 1728 and not os.path.exists(out)

    second = started(kept + 64)
    workers = children(second.pid)
    os.kill(second.pid, signal.SIGKILL)
    second.communicate(timeout=60)
    again = rows_kept()
    assert again >= kept + 64 and workers
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers), "workers outlive a parent that was killed"

    before = [json.loads(line) for line in partial.read_text().splitlines()[1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not partial.exists(), done.stderr
    rows = list(csv.DictReader(io.StringIO(Path(out).read_text())))
    assert len(rows) == 1728
    for kept_row in before[:100]:
        assert rows[kept_row["i"]]["verdict"] == kept_row["row"]["verdict"]


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
