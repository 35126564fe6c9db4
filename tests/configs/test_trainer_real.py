"""``training_args.json`` against TrainingArguments, by way of HfArgumentParser, as the script reads it."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from runs import name_of, of

from estimators.run import Run
from selector.configs import hyper, trainer

pytestmark = pytest.mark.engines


def test_training_arguments_take_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    texts: dict[str, Run] = {}
    for run in of("trainer"):
        texts.setdefault(json.dumps(trainer.arguments(run)), run)
    assert len(texts) > 20
    for text, run in texts.items():
        data = json.loads(text)
        deepspeed = data.pop("deepspeed", None)  # its file has a proof of its own
        assert (deepspeed == "ds_config.json") == (run.strategy.engine == "deepspeed")
        (theirs,) = parser.parse_dict({**data, "use_cpu": True})
        _same(run, theirs)
    assert "ACCELERATE_USE_DEEPSPEED" not in os.environ or os.environ["ACCELERATE_USE_DEEPSPEED"] != "true"


def _same(run: Run, theirs: Any) -> None:
    work, where = run.workload, name_of(run)
    assert theirs.per_device_train_batch_size == work.micro_batch, where
    assert theirs.gradient_accumulation_steps == work.grad_accum, where
    assert theirs.activation_checkpointing == (work.checkpointing == "full"), where
    if theirs.activation_checkpointing:
        assert theirs.activation_checkpointing_kwargs == {"use_reentrant": False}
    assert theirs.max_grad_norm == hyper.GRADIENT_CLIPPING
    mixed = "bf16" if theirs.bf16 else "fp16" if theirs.fp16 else "no"
    pure = work.precision in ("bf16", "fp16", "fp32") and run.strategy.engine != "deepspeed"
    assert mixed == ("no" if pure or run.settings.compute_dtype == "fp32" else run.settings.compute_dtype), where


def test_optimizers_have_the_trainers_names() -> None:
    training = pytest.importorskip("transformers.training_args")
    from selector.configs.optimizers import TRAINER_NAMES

    assert set(TRAINER_NAMES.values()) <= {name.value for name in training.OptimizerNames}
