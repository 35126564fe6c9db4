"""Every example in the help of these commands runs as it stands."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from selector.cli import fit, main, recommend, sweep, tree

SWEEP = "models: [llama-3.2-1b]\ngpus: [4xA10]\nworkload: {seq_len: [512, 1024]}\n"
EXAMPLES = [
    line.strip()
    for module in (recommend, fit, tree, sweep)
    for line in module.EXAMPLE.splitlines()
    if line.strip().startswith("dist-advisor")
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    (tmp_path / "questions.csv").write_text("model,gpus\nllama-3.2-1b,4xA10\n")
    assert main(shlex.split(example)[1:]) == 0


@pytest.mark.parametrize("command", ["recommend", "fit", "tree", "sweep"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main([command, "--help"])
    assert done.value.code == 0 and "examples:" in capsys.readouterr().out
