"""An answer names the command that follows, and that command runs."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))

from making.session import Session, own


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with Session() as session:
        yield session.folder


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("estimate --model llama-3.2-1b --gpus 4xA10 --seq-len 4096 --no-compile", "recommend"),
        ("estimate --model llama-8b --gpus 4xA10 --strategy ddp", "explain"),
        ("estimate --model llama-8b --gpus A10 --strategy single --strategy zero3", "recommend"),
        ("recommend --model llama-3.2-1b --gpus 4xA10 --team pytorch --global-batch 64", "recommend"),
        ("fit --model llama-8b --gpu H100 --strategy zero3", "explain"),
        ("fit --model llama-3.2-1b --gpus 4xA10 --strategy zero3", "explain"),
        ("diagnose train.log --model llama-8b --gpus 4xA10 --strategy zero3", "recommend"),
    ],
)
def test_the_next_command_runs(folder: Path, line: str, names: str) -> None:
    _, _, err = own(line.split())
    said = re.findall(r"^next: dist-advisor (.*)$", err, re.MULTILINE)
    assert len(said) == 1 and said[0].startswith(names)
    status, out, err = own(shlex.split(said[0]))
    assert status == 0 and out, err


def test_programs_are_not_told(folder: Path) -> None:
    for more in (["--format", "json"], ["-q"]):
        _, _, err = own(["estimate", "--model", "gpt2", "--gpus", "A10", *more])
        assert "next:" not in err


def test_emitted_files_are_validated_next(folder: Path) -> None:
    _, _, err = own(["recommend", "--model", "gpt2", "--gpus", "2xA10", "--strategy", "ddp", "--emit", "made"])
    assert "next: dist-advisor validate made" in err
