"""A bar for what takes long, on a terminal only, and gone when the answer is printed."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from selector.cli import main, progress
from selector.watched import watching


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def left_on_screen(text: str) -> str:
    """The last line as a terminal shows it."""
    line = ""
    for piece in text.split("\r"):
        line = piece + line[len(piece) :]
    return line.strip()


@pytest.mark.parametrize(
    "command",
    [
        "recommend --model llama-3.2-1b --gpus 4xA10",
        "fit --model llama-3.2-1b --gpus 4xA10 --strategy zero3 --strategy fsdp",
        "plan --model llama-8b --gpu H100 --tokens 1T --max-gpus 16",
        "validate --cases my_runs.jsonl",
    ],
)
def test_a_bar_comes_and_goes(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1] / "docs" / "samples")
    monkeypatch.setattr(progress, "DELAY_SECONDS", -1.0)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert main([*command.split(), "--format", "json"]) == 0
    first, _, _ = screen.getvalue().partition("note:")
    assert " of " in first and "·" in first and not left_on_screen(first)
    assert "█" not in capsys.readouterr().out


@pytest.mark.parametrize("more", [["--plot", "made.svg"], ["--format", "html", "--out", "made.html"]])
def test_pictures_are_counted(more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "DELAY_SECONDS", -1.0)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert main(["estimate", "--model", "gpt2", "--gpus", "A10", *more]) == 0
    assert re.search(r"· 0 of [34]", screen.getvalue())


def test_no_bar_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY_SECONDS", -1.0)
    for quiet, stream in (([], io.StringIO()), (["-q"], Terminal())):
        monkeypatch.setattr(sys, "stderr", stream)
        assert main(["fit", "--model", "llama-3.2-1b", "--gpus", "4xA10", "--strategy", "zero3", *quiet]) == 0
        assert "·" not in stream.getvalue()


def test_quick_answers_show_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY_SECONDS", 60.0)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert main(["fit", "--model", "llama-3.2-1b", "--gpus", "4xA10", "--strategy", "ddp"]) == 0
    assert "·" not in screen.getvalue()


def test_every_part_of_the_scores_is_watched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory, speed, and speed held out by size: each is counted to its end."""
    monkeypatch.chdir(Path(__file__).parents[1] / "docs" / "samples")
    told: list[tuple[int, int]] = []
    with watching(lambda done, of: told.append((done, of))):
        assert main(["validate", "--cases", "my_runs.jsonl", "--format", "json"]) == 0
    assert sum(done == of for done, of in told) == 3
    assert '"tokens_per_s"' in capsys.readouterr().out
