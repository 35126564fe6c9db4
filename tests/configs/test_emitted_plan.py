"""``plan.json``: the same question again; batch numbers agree in every file; what the command line writes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from runs import LLAMA

from estimators import InputError, NotModelled, estimate
from estimators.workload import FIELDS
from selector import recommend
from selector.configs import accelerate_config, deepspeed_config, emit, files_of, hyper

ROOT = Path(__file__).resolve().parents[2]
CASES = [
    ("torch", "fsdp-hybrid-shard:shard=4", {"micro_batch": 2, "grad_accum": 3}),
    ("trainer", "zero3-offload", {"method": "lora", "lora_rank": 8}),
    ("accelerate", "ddp", {"precision": "bf16"}),
    ("deepspeed", "zero2+optimizer@cpu", {"micro_batch": 4, "grad_accum": 2}),
    ("llamafactory", "zero2", {"grad_accum": 5}),
]


@pytest.mark.parametrize(("stack", "strategy", "fields"), CASES)
def test_the_plan_asks_the_same_question(stack: str, strategy: str, fields: dict[str, Any]) -> None:
    asked = estimate(LLAMA, "2x4xA100-80GB", strategy, stack=stack, **fields)
    files = files_of(asked)
    plan = json.loads(files["plan.json"])
    assert plan["schema"] == "dist-advisor/plan/1"
    assert set(plan["workload"]) == set(FIELDS) - {"versions"}
    model = json.loads(files[plan["model"]["config"]])
    given = {name: value for name, value in plan["workload"].items() if value not in (None, []) and name in FIELDS}
    if given["method"] not in ("lora", "dora", "qlora"):
        given = {k: v for k, v in given.items() if k not in ("lora_rank", "lora_targets")}
    if given["method"] != "qlora":
        given.pop("quant")
    again = estimate(model, plan["cluster"]["spelled"], plan["strategy"], **given, versions=plan["versions"])
    assert again.gpu.expected == asked.gpu.expected
    assert plan["prediction"]["gpu"]["allocated_bytes"]["expected"] == round(asked.gpu.expected)
    assert plan["entry"]["script"] in (None, "train.py")
    assert set(plan["entry"]["config_files"]) <= set(files)


@pytest.mark.parametrize(("stack", "strategy", "fields"), CASES)
def test_batch_numbers_agree(stack: str, strategy: str, fields: dict[str, Any]) -> None:
    asked = estimate(LLAMA, "2x4xA100-80GB", strategy, stack=stack, **fields)
    files, run = files_of(asked), asked.run
    whole = hyper.global_batch(run)
    assert whole == run.workload.micro_batch * run.workload.grad_accum * 8
    assert json.loads(files["plan.json"])["global_batch"] == whole
    assert f"= {whole} sequences" in files["README.md"]
    if match := re.search(r"^GLOBAL_BATCH = (\d+)", files.get("train.py", ""), re.MULTILINE):
        assert int(match[1]) == whole
    if "ds_config.json" in files:
        assert json.loads(files["ds_config.json"])["train_batch_size"] in ("auto", whole)


def test_nothing_names_a_machine_of_ours() -> None:
    for stack, strategy, fields in CASES:
        for name, text in files_of(estimate(LLAMA, "2x4xA100-80GB", strategy, stack=stack, **fields)).items():
            assert not re.search(r"(?<![\w.$])/(home|root|work|tmp)/", text), name
            assert not re.search(rf"\b{re.escape(os.uname().nodename)}\b", text), name


def test_readme_says_what_comes_after_the_run() -> None:
    for strategy, words in (("zero3", ("zero_to_fp32.py", "--resume", "GiB")), ("fsdp-full-shard", ("dcp_to_torch",))):
        page = files_of(estimate("llama-8b", "8xA100-80GB", strategy, stack="torch"))["README.md"]
        for word in (*words, "Predicted memory", "Why each value", "requirements.txt"):
            assert word in page, word
    adapted = files_of(estimate("llama-8b", "8xA100-80GB", "ddp", method="lora"))["README.md"]
    assert "merge_and_unload" in adapted


@pytest.mark.parametrize(
    ("stack", "strategy", "fields", "words"),
    [
        (
            "swift",
            "zero3",
            {},
            ("rank 0 gathers", "zero_to_fp32.py", "--resume_from_checkpoint", "same number of ranks"),
        ),
        ("swift", "ddp", {"method": "lora"}, ("swift export --adapters", "--merge_lora")),
        ("swift", "fsdp-full-shard", {}, ("accelerate merge-weights",)),
        ("llamafactory", "fsdp-full-shard", {"method": "lora"}, ("adapter_model.safetensors", "by itself")),
        ("llamafactory", "zero2", {}, ("ordinary model", "zero_to_fp32.py", "by itself")),
        ("axolotl", "fsdp-full-shard", {"precision": "bf16"}, ("merge-sharded-fsdp-weights", "by itself")),
        ("axolotl", "ddp", {"method": "qlora"}, ("axolotl merge-lora",)),
        ("torchtitan", "fsdp-full-shard", {}, ("starts from random weights", "initial_load_path", "safetensors")),
        ("torchtune", "fsdp-full-shard", {"precision": "bf16"}, ("checkpoints/epoch_N", "resume_from_checkpoint=True")),
    ],
)
def test_every_stack_says_how_its_run_ends_and_goes_on(
    stack: str, strategy: str, fields: dict[str, Any], words: tuple[str, ...]
) -> None:
    files = files_of(estimate("llama-8b", "8xA100-80GB", strategy, stack=stack, **fields))
    page = files["README.md"]
    for word in (*words, "## Checkpoints", "## Restart", "GiB"):
        assert word in page, word
    assert "configuration of the stack" not in page  # each file has its own line


def test_a_recommendation_emits(tmp_path: Path) -> None:
    answer = recommend("llama-8b", "8xA100-80GB", strategy="zero3-offload")
    written = answer.emit(tmp_path / "run")
    assert {Path(name).name for name in written} >= {"train.py", "ds_config.json", "accelerate.yaml", "plan.json"}
    assert answer.deepspeed_config()["zero_optimization"]["offload_param"]["device"] == "cpu"
    assert answer.accelerate_config()["distributed_type"] == "DEEPSPEED"
    with pytest.raises(InputError, match="--force"):
        answer.emit(tmp_path / "run")
    assert emit(answer, tmp_path / "run", force=True) == written


def test_configs_of_the_wrong_engine_are_refused() -> None:
    found = estimate(LLAMA, "8xA100-80GB", "fsdp-full-shard")
    with pytest.raises(NotModelled, match="does not run on DeepSpeed"):
        deepspeed_config(found)
    assert accelerate_config(found)["fsdp_config"]["fsdp_version"] == 2
    nothing = recommend("llama-70b", "A10", host_memory="64GB")
    with pytest.raises(NotModelled, match="nothing fits"):
        files_of(nothing)


def test_command_line(tmp_path: Path) -> None:
    words = ["recommend", "--model", "llama-8b", "--gpus", "4xA100-80GB", "--strategy", "zero2", "--emit", "my run"]
    command = [sys.executable, str(ROOT / "dist_advisor.py"), *words, "--format", "json"]
    first = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert {Path(name).name for name in json.loads(first.stdout)["files"]} == {
        path.name for path in (tmp_path / "my run").rglob("*") if path.is_file()
    }
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert second.returncode == 2 and "would be overwritten" in second.stderr and "Traceback" not in second.stderr
    assert subprocess.run([*command, "--force"], cwd=tmp_path, capture_output=True).returncode == 0
