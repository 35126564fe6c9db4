"""An emitted train.py takes two steps on two ranks of the CPU with each engine, saves, resumes and exports."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from cpu_ranks import prepare, run
from runs import LLAMA

from estimators import estimate
from selector.configs import emit, files_of

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
    ("accelerate", "zero2", {}),
    ("trainer", "ddp", {"precision": "fp32"}),
    ("trainer", "zero3", {"method": "lora"}),
]


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    for package in ("deepspeed", "accelerate", "transformers", "peft"):
        pytest.importorskip(package)
    prepare()


@pytest.mark.parametrize(("stack", "strategy", "fields"), CASES, ids=[f"{s}-{n}" for s, n, _ in CASES])
def test_two_steps(
    tmp_path: Path, stack: str, strategy: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = 1 if strategy == "single" else 2
    cluster = "A100-80GB" if ranks == 1 else "2xA100-80GB"
    folder = tmp_path / "run"
    emit(estimate(TINY, cluster, strategy, stack=stack, seq_len=16, micro_batch=2, **fields), folder)
    printed = run(folder, ["--random-weights", "--steps", "2", "--save-every", "2"], ranks=ranks)
    assert "step 2 loss" in printed[0] or "train_loss" in printed[0], printed[0]
    exported = {path.name for path in (folder / "checkpoints" / "model").iterdir()}
    assert exported & {"model.safetensors", "adapter_model.safetensors"}, exported
    _merged(folder, monkeypatch)
    if stack == "torch" and strategy == "fsdp-full-shard":
        again = run(folder, ["--random-weights", "--steps", "3", "--save-every", "0", "--resume"], ranks=ranks)
        assert "step 3 loss" in again[0] and "step 2 loss" not in again[0], again[0]


def _merged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What README says of a checkpoint without the engine is run as it stands there, for the second step's."""
    page = (folder / "README.md").read_text(encoding="utf-8").partition("## Checkpoints")[2]
    found = re.findall(r"^python (.*(?:zero_to_fp32|dcp_to_torch).*)$", page, re.MULTILINE)
    for line in found:
        words = line.replace("000100", "000002").replace("-100", "-2").split()
        monkeypatch.chdir(folder)
        if words[0] == "-m":
            monkeypatch.setattr(sys, "argv", words[1:])
            runpy.run_module(words[1], run_name="__main__")
        else:
            monkeypatch.setattr(sys, "argv", words)
            runpy.run_path(words[0], run_name="__main__")
        made = folder / ("merged.pt" if words[0] == "-m" else "model-fp32/model.safetensors")
        assert made.stat().st_size > 10_000
    engine = json.loads((folder / "plan.json").read_text())["prediction"]["engine"]
    assert bool(found) == (engine not in ("torch", "ddp") or "dcp_to_torch" in page)


def test_shards_of_accelerate_become_a_model_and_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FSDP under the Trainer writes shards as accelerate's save_fsdp_model does; README's words make of them what
    from_pretrained reads. The adapter's configuration is the one that was emitted."""
    import torch
    import torch.distributed.checkpoint as dcp
    from accelerate.commands.merge import merge_command, merge_command_parser
    from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
    from transformers import AutoModelForCausalLM

    found = estimate(TINY, "2xA100-80GB", "fsdp-full-shard", stack="llamafactory", method="lora", lora_rank=4)
    files = files_of(found)
    page = files["README.md"].partition("## Checkpoints")[2]
    config = eval(re.search(r"^(LoraConfig\(.*?\))\.save_pretrained", page, re.MULTILINE | re.DOTALL)[1],
                  {"LoraConfig": LoraConfig})  # fmt: skip
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(files["model/config.json"])
    monkeypatch.chdir(tmp_path)
    base = AutoModelForCausalLM.from_config(_config(tmp_path / "model"))
    base.save_pretrained("model")
    adapted = get_peft_model(base, config)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter)
    shards = tmp_path / "checkpoints" / "checkpoint-2" / "pytorch_model_fsdp_0"
    dcp.save({"model": get_peft_model_state_dict(adapted)}, storage_writer=dcp.FileSystemWriter(shards))
    (line,) = re.findall(r"^accelerate merge-weights (\S+) (\S+) && mv (\S+) (\S+)$", page, re.MULTILINE)
    merge_command(merge_command_parser().parse_args([line[0].replace("-100", "-2"), line[1]]))
    Path(line[2]).rename(line[3])
    config.save_pretrained("adapter")
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("model"), "adapter")
    ids = torch.arange(8).view(1, 8)
    torch.testing.assert_close(again(ids).logits, adapted(ids).logits)


def _config(folder: Path) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder)
