"""The emitted JSON against DeepSpeed's own classes, and the integration of transformers that fills ``auto``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from runs import name_of, of

from estimators.readers.deepspeed_keys import OFFLOAD_KNOBS, ZERO_KNOBS
from estimators.run import Run
from selector.configs import deepspeed, hyper, trainer
from selector.configs.script import SCRIPTED, kind_of

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def config_class() -> Any:
    """DeepSpeedConfig, told that there are eight ranks."""
    module = pytest.importorskip("deepspeed.runtime.config")

    class EightRanks(module.DeepSpeedConfig):  # type: ignore[name-defined,misc]
        def _configure_train_batch_size(self) -> None:
            self.world_size = 8
            super()._configure_train_batch_size()

    return EightRanks


def test_native_json_builds(config_class: Any) -> None:
    """Every run with numbers: DeepSpeedConfig accepts it and reads the settings that were estimated."""
    runs = [run for run in of(*SCRIPTED, engine="deepspeed") if kind_of(run) != "trainer"]
    assert len(runs) > 200
    for run in runs:
        theirs = config_class(json.loads(json.dumps(deepspeed.native(run))))
        _same(run, theirs)


def test_auto_json_builds(config_class: Any) -> None:
    """Every run of the Trainer's family: the integration fills each ``auto``, and then it builds as well."""
    integration = pytest.importorskip("transformers.integrations.deepspeed")
    stacks = ("trainer", "trl", "swift", "llamafactory", "axolotl")
    runs = of(*stacks, engine="deepspeed")
    assert len(runs) > 200
    for run in runs:
        filled = integration.HfTrainerDeepSpeedConfig(deepspeed.hugging_face(run))
        arguments = _arguments(run)
        filled.trainer_config_process(arguments)
        filled.trainer_config_finalize(arguments, _Model(run), num_training_steps=hyper.STEPS)
        assert "auto" not in json.dumps(filled.config), name_of(run)
        _same(run, config_class(json.loads(json.dumps(filled.config))))


def _same(run: Run, theirs: Any) -> None:
    settings, zero, where = run.settings, theirs.zero_config, name_of(run)
    assert zero.stage == run.strategy.stage, where
    assert theirs.train_batch_size == hyper.global_batch(run), where
    assert theirs.train_micro_batch_size_per_gpu == run.workload.micro_batch, where
    assert theirs.gradient_accumulation_steps == run.workload.grad_accum, where
    assert theirs.gradient_clipping == hyper.GRADIENT_CLIPPING, where
    for block, role in deepspeed.DEVICE_OF.items():
        offload = getattr(zero, block)
        assert (offload.device if offload else "none") == (getattr(run.strategy, role) or "none"), where
        for key, knob in OFFLOAD_KNOBS[block].items():
            if offload and knob.name in settings.knobs:
                assert getattr(offload, key) == settings.knobs[knob.name], (where, key)
    for key, knob in ZERO_KNOBS.items():
        if knob.name in settings.knobs and settings.knobs[knob.name] is not None and knob.name != "mics":
            assert getattr(zero, key.removeprefix("stage3_")) == settings.knobs[knob.name], (where, key)
    halves = {"bf16": theirs.bfloat16_config.enabled, "fp16": theirs.float16_config.enabled}
    assert [name for name, on in halves.items() if on] == [d for d in (settings.compute_dtype,) if d != "fp32"], where
    assert theirs.bfloat16_config.bf16_master_weights_and_grads == (run.workload.precision == "bf16"), where
    assert theirs.bfloat16_config.bf16_optimizer_states == (settings.state_dtype == "bf16"), where
    accumulates = theirs.grad_accum_dtype or settings.compute_dtype
    assert str(accumulates).removeprefix("torch.") in (settings.knobs.get("grad_accum_dtype", accumulates), "fp32"), (
        where
    )


class _Model:
    """What the integration asks of a model: the hidden size."""

    def __init__(self, run: Run) -> None:
        self.config = type("Config", (), {"hidden_size": run.model.config["hidden_size"]})()


def _arguments(run: Run) -> Any:
    """The fields of TrainingArguments that the integration reads, with the values that are emitted for them."""
    made = trainer.arguments(run)
    fields = {
        "world_size": run.ranks, "fp16_full_eval": False, "bf16_full_eval": False, "save_on_each_node": False,
        "warmup_steps": 0, "hub_model_id": None, "get_warmup_steps": staticmethod(lambda steps: 0),
    }  # fmt: skip
    return type("Arguments", (), {**made, **fields})()


def test_the_largest_parameter_fits_a_swap_buffer() -> None:
    from estimators.memory import resolve

    run = resolve("llama-8b", "8xA100-80GB", "zero-infinity", stack="deepspeed")
    assert deepspeed.native(run)["zero_optimization"]["offload_param"]["buffer_size"] == 128256 * 4096
