"""README's output is what the command prints, and its Python lines run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_is_the_commands_own() -> None:
    shown = re.search(r"```text\n(.*?)\n```", README, re.DOTALL)
    assert shown
    command = [sys.executable, str(ROOT / "dist_advisor.py"), "estimate", "--model", "llama-8b", "--gpus", "4xA10"]
    versions = "--versions=torch=2.13.0,transformers=5.24.0,accelerate=1.15.0,deepspeed=0.19.8,peft=0.21.2"
    done = subprocess.run([*command, versions], capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"})
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown.group(1).splitlines()


def test_the_python_lines_run() -> None:
    code = re.search(r"```python\n(.*?)\n```", README, re.DOTALL)
    assert code
    exec(compile(code.group(1), "README.md", "exec"), {})
