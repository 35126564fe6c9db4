"""Every example in every command's help runs, in one folder, in the order in which they stand."""

from __future__ import annotations

import glob
import io
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from making.reference_cli import commands  # noqa: E402
from making.session import Session, own  # noqa: E402

# command -> why its examples do not run here
ELSEWHERE = {
    "ui": "starts a server: tests/ui drives it in a browser",
    "completion": "writes into the home folder: tests/test_cli.py makes the scripts",
}
# how an example begins -> why it does not run here
SLOW = {
    "dist-advisor validate run/": "starts engines: tests/validate does",
    "dist-advisor validate my_folder/": "starts engines: tests/validate does",
    "dist-advisor validate --config": "starts engines: tests/validate does",
    "dist-advisor validate --self-check": "starts engines: tests/validate does",
}
ONE = ("check",)  # commands whose answer may be no


def examples() -> list[tuple[str, str]]:
    found = []
    for name, command in commands():
        text = (command.epilog or "").replace("\\\n", " ")
        lines = [" ".join(line.split()) for line in text.splitlines()]
        mine = [line for line in lines if line.startswith("dist-advisor ") or "| dist-advisor " in line]
        found += [(name, line) for line in mine]
    return found


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The sample files of the pages."""
    with Session() as session:
        yield session.folder


def test_every_command_has_examples() -> None:
    named = {name for name, _ in examples()}
    assert named == {name for name, _ in commands()}


@pytest.mark.parametrize(("name", "example"), examples())
def test_example(folder: Path, name: str, example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in ELSEWHERE or example.startswith(tuple(SLOW)):
        pytest.skip(ELSEWHERE.get(name) or next(why for start, why in SLOW.items() if example.startswith(start)))
    before, _, line = example.rpartition("| ")
    if before:  # tail -200 train.log | dist-advisor diagnose -
        text = (folder / before.split()[-1]).read_bytes()
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))
    words = [
        w for word in shlex.split(line, comments=True) for w in (sorted(glob.glob(word)) if "*" in word else [word])
    ]
    status, out, err = own(words[1:])
    assert status in ((0, 1) if name in ONE else (0,)), err
    assert out or "--out" in words


def test_help_fits_80_columns(folder: Path) -> None:
    for name, _ in commands():
        _, out, _ = own([name, "--help"])
        assert not [line for line in out.splitlines() if len(line) > 80], name


TABLES = (
    "estimate --model llama-8b --gpus 4xA10",
    "estimate --model deepseek-v3 --gpus 16x8xH100 --all",
    "estimate --model llama-8b --gpus 2x8xH100 --strategy zero3:hpz=8,quantized_weights,reduce_bucket_size=50000000",
    "recommend --model llama-8b --gpus 4xA10 --team pytorch",
    "recommend --model qwen2.5-72b --gpus 2x8xH100 --global-batch 128",
    "recommend --model llama-70b --gpus A10",
    "explain --model llama-8b --gpus 4xA10 zero3-offload",
    "explain --model llama-8b --gpus 8xA100 zero2 zero3",
    "fit --model llama-8b --gpus 8xH100",
    "plan --model llama-70b --gpu H100 --tokens 15T --price 2.5 --max-gpus 256",
    "sweep sweep.yaml",
    "check ds_config.json --model llama-8b --gpus 4xA10",
    "check accelerate.yaml args.json train.py",
    "diagnose train.log --model llama-8b --gpus 4xA10 --strategy zero3",
    "models",
    "gpus",
    "strategies",
    "strategies zero3",
    "strategies fsdp1-full-shard",
    "tree",
    "validate --cases my_runs.jsonl",
)


@pytest.mark.parametrize("line", TABLES)
def test_tables_fit_80_columns(folder: Path, line: str) -> None:
    status, out, err = own([*line.split(), "-q"])
    assert status in (0, 1), err
    assert not [x for x in out.splitlines() if columns(x.rstrip()) > 80]
    assert "…" not in out or not line.startswith(("plan", "recommend"))  # no figure is cut; long names may be


def test_no_word_is_cut_at_80_columns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of what else there is, at 200 columns, stand there at 80 too."""
    line = ["recommend", "--model", "llama-8b", "--gpus", "4xA10", "--team", "pytorch", "-q"]
    narrow = own(line)[1]
    monkeypatch.setenv("COLUMNS", "200")
    wide = own(line)[1].partition("what else there is")[2].partition("settings")[0]
    assert [word for word in wide.split() if word not in narrow] == []


def columns(line: str) -> int:
    """As a terminal counts them: Chinese characters take two."""
    from rich.cells import cell_len

    return cell_len(line)
