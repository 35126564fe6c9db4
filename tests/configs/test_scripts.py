"""``train.py``: it compiles, no name is undefined or unused, and it says what was settled."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from runs import CLUSTER, LLAMA, ONE

from estimators import IllegalCombination, NotModelled, Strategy, estimate
from estimators.workload import CHECKPOINTINGS
from selector.configs import files_of
from selector.configs.script import DTYPES

CASES = [
    *((stack, strategy, {}) for stack in ("torch", "deepspeed", "accelerate", "trainer", "trl")
      for strategy in ("single", "ddp", "zero2", "zero3-offload", "fsdp-hybrid-shard", "fsdp1-full-shard")),
    *(("torch", "fsdp-full-shard", {"checkpointing": way}) for way in CHECKPOINTINGS),
    *(("accelerate", "fsdp1-full-shard", {"method": method}) for method in ("lora", "dora", "freeze")),
    *(("torch", strategy, {"method": "qlora"}) for strategy in ("ddp", "zero2", "fsdp-full-shard")),
    *(("torch", "single", {"optimizer": name}) for name in ("adamw-8bit", "paged-adamw", "sgd-momentum", "adafactor")),
    ("trainer", "ddp", {"optimizer": "sgd-momentum"}), ("trainer", "zero2", {"loss": "fused"}),
    ("torch", "ddp", {"loss": "fused", "precision": "fp16-mixed", "compile": True, "padding": "right"}),
    ("torch", Strategy("fsdp-full-shard", {"wrap": "blocks+embedding+head", "forward_prefetch": 2,
                                           "backward_prefetch": "none"}), {}),
    ("torch", "fsdp1-full-shard:wrap=none,backward_prefetch=none+params@cpu", {"grad_accum": 4}),
]  # fmt: skip


def scripts() -> dict[str, str]:
    found = {}
    for stack, strategy, fields in CASES:
        made = files_of(estimate(LLAMA, ONE if strategy == "single" else CLUSTER, strategy, stack=stack, **fields))
        found[f"{stack}_{len(found)}"] = made["train.py"]
    return found


def test_every_script_is_clean_python(tmp_path: Path) -> None:
    """pyflakes rules of ruff over all of them: nothing undefined, nothing unused, no line too long."""
    for name, text in scripts().items():
        compile(text, name, "exec")
        (tmp_path / f"{name}.py").write_text(text)
    rules = ["--isolated", "--select", "F,E,W,I", "--line-length", "120", "--output-format", "concise"]
    done = subprocess.run([sys.executable, "-m", "ruff", "check", *rules, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_constants_are_the_settings() -> None:
    for stack, strategy, fields in CASES[:12]:
        found = estimate(LLAMA, ONE if strategy == "single" else CLUSTER, strategy, stack=stack, **fields)
        tree = ast.parse(files_of(found)["train.py"])
        values = {
            node.targets[0].id: ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        settings = found.run.settings
        assert values["LOAD_DTYPE"] == DTYPES[settings.load_dtype]
        assert values.get("COMPUTE_DTYPE", DTYPES[settings.compute_dtype]) == DTYPES[settings.compute_dtype]
        assert values.get("SHARD", settings.knobs.get("shard")) == settings.knobs.get("shard")
        assert values["SEQ_LEN"] == found.run.workload.seq_len


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"loss": "chunked"}, "no chunked loss"),
        ({"optimizer_in_backward": True}, "inside backward"),
        ({"method": "qlora", "quant": "gptq4"}, "quantised before"),
        ({"optimizer": "muon"}, "does not make the optimizer muon"),
        ({"stack": "trainer", "optimizer": "muon"}, "no optimizer muon"),
        ({"stack": "trainer", "gradient_as_bucket_view": True}, "no word for gradient_as_bucket_view"),
        ({"stack": "trainer", "zero_init": False}, "under zero.Init"),
    ],
)
def test_what_the_script_cannot_say_is_refused(fields: dict[str, Any], reason: str) -> None:
    knobs = {k: fields.pop(k) for k in ("gradient_as_bucket_view", "zero_init") if k in fields}
    strategy = Strategy("zero3" if "zero_init" in knobs else "ddp", knobs)
    with pytest.raises((IllegalCombination, NotModelled), match=reason):
        files_of(estimate(LLAMA, CLUSTER, strategy, **{"stack": "torch", **fields}))


def test_a_model_without_tokens_is_refused() -> None:
    with pytest.raises(NotModelled, match="no language model"):
        files_of(estimate({"model_type": "vit"}, CLUSTER, "ddp"))
