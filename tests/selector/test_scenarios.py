"""The three scenarios of the second document, and where its advice stands today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from selector import recommend

ROOT = Path(__file__).resolve().parent.parent.parent


def test_scenario_1_an_a10_and_an_8b() -> None:
    """QLoRA on one A10; its ZeRO-3 and offload are not needed: on one GPU nothing is sharded."""
    answer = recommend("llama-3-8b", "A10", allow="qlora")
    assert (answer.settings["method"], answer.strategy) == ("qlora", "single")
    assert answer.estimate is not None and answer.estimate.gpu.process.expected < 18e9
    # without leave to use QLoRA the document's other way, offload, is the answer
    full = recommend("llama-3-8b", "A10")
    assert full.strategy is not None and "@cpu" in full.strategy
    assert any("QLoRA" in remark for remark in full.remarks)


def test_scenario_2_long_video() -> None:
    """8192 tokens: the document's ZeRO-2 in place of ZeRO-3, and both places shown under `documents`."""
    asked = {"seq_len": 8192, "team": "deepspeed", "attention": "flash"}
    now = recommend("qwen2-7b", "8xA100-80GB", goal="documents", **asked)  # type: ignore[arg-type]
    assert now.leaf == "deepspeed" and now.reading.strategy == "zero2" and now.strategy == "zero2"
    written = recommend("qwen2-7b", "8xA100-80GB", policy="documents", goal="documents", **asked)  # type: ignore[arg-type]
    assert written.strategy == "zero3"
    assert any("长序列任务慎用 ZeRO-3" in conflict for conflict in written.conflicts)
    assert any("flash attention" in remark for remark in written.remarks)


@pytest.mark.parametrize("goal", ["fastest", "simplest"])
def test_scenario_3_quick_experiments(goal: str) -> None:
    """A small model that is changed often: DDP."""
    answer = recommend("llama-3.2-1b", "4xA100-80GB", goal=goal)
    assert answer.strategy == "ddp" and answer.leaf == "ddp"
    assert any("document 2, PyTorch DDP" in remark for remark in answer.remarks)
    written = recommend("llama-3.2-1b", "4xA100-80GB", policy="documents", goal="documents")
    assert written.strategy == "fsdp-full-shard"
    assert any("中小型模型训练（<7B）" in conflict for conflict in written.conflicts)


def test_ample_memory_is_not_a_case_for_deepspeed() -> None:
    """不要为了用 DeepSpeed 而用 DeepSpeed: also for a team that knows it."""
    assert recommend("llama-3.2-1b", "8xH100", team="deepspeed").engine == "ddp"


def test_page_of_the_documents_is_written_from_commands() -> None:
    """Every claim is examined, and every command under it is one that this program takes."""
    done = subprocess.run(
        [sys.executable, "-c", "import make_documents as m; p = m.page(); print(p.count('    dist-'), p.count('## '))"],
        cwd=ROOT / "docs", capture_output=True, text=True, env={"PATH": "", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    commands, sections = map(int, done.stdout.split())
    assert sections >= 18 and commands >= sections - 2
