"""An emitted train.py takes two steps on two ranks of the CPU with each engine, saves, resumes and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cpu_ranks import prepare, run
from runs import LLAMA

from estimators import estimate
from selector.configs import emit

pytestmark = pytest.mark.engines

TINY = {**LLAMA, "num_hidden_layers": 2}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("torch", "single", {}),
    ("torch", "ddp", {"method": "lora"}),
    ("torch", "fsdp-full-shard", {"checkpointing": "selective", "method": "lora"}),
    ("torch", "fsdp1-full-shard", {"method": "lora", "grad_accum": 2}),
    ("torch", "zero3", {}),
    ("deepspeed", "zero1+optimizer@cpu", {"checkpointing": "every-2"}),
    ("deepspeed", "zero2", {"method": "freeze", "freeze": ("model.layers.0",)}),
    ("accelerate", "ddp", {"grad_accum": 2}),
    ("trainer", "ddp", {"precision": "fp32"}),
    ("trainer", "zero3", {"method": "lora"}),
]


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    for package in ("deepspeed", "accelerate", "transformers", "peft"):
        pytest.importorskip(package)
    prepare()


@pytest.mark.parametrize(("stack", "strategy", "fields"), CASES, ids=[f"{s}-{n}" for s, n, _ in CASES])
def test_two_steps(tmp_path: Path, stack: str, strategy: str, fields: dict[str, Any]) -> None:
    ranks = 1 if strategy == "single" else 2
    cluster = "A100-80GB" if ranks == 1 else "2xA100-80GB"
    folder = tmp_path / "run"
    emit(estimate(TINY, cluster, strategy, stack=stack, seq_len=16, micro_batch=2, **fields), folder)
    printed = run(folder, ["--random-weights", "--steps", "2", "--save-every", "2"], ranks=ranks)
    assert "step 2 loss" in printed[0] or "train_loss" in printed[0], printed[0]
    exported = {path.name for path in (folder / "checkpoints" / "model").iterdir()}
    assert exported & {"model.safetensors", "adapter_model.safetensors"}, exported
    if stack == "torch" and strategy == "fsdp-full-shard":
        again = run(folder, ["--random-weights", "--steps", "3", "--save-every", "0", "--resume"], ranks=ranks)
        assert "step 3 loss" in again[0] and "step 2 loss" not in again[0], again[0]
