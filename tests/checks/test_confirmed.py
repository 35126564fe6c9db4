"""Rules that say ``confirmed=run``, held against the installed engines: what they call an error is one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

MICRO = {"train_micro_batch_size_per_gpu": 1}
BF16, FP16 = {"bf16": {"enabled": True}}, {"fp16": {"enabled": True}}


def zero(stage: int, **rest: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **rest}}


REFUSED = {
    "ds-batch-triangle": MICRO | {"train_batch_size": 7, "gradient_accumulation_steps": 2},
    "ds-batch-none": {"gradient_accumulation_steps": 2},
    "ds-fp16-bf16-both": MICRO | BF16 | FP16,
    "ds-auto-without-hf": {"train_micro_batch_size_per_gpu": "auto"},
    "ds-bf16-master-flags": MICRO | {"bf16": {"enabled": True, "bf16_optimizer_states": True}} | zero(1),
    "ds-amp-with-zero": MICRO | {"amp": {"enabled": True}} | zero(1),
    "ds-offload-object": MICRO | zero(2, offload_optimizer=True),
    "offload-ratio-stage": MICRO | zero(2, offload_optimizer={"device": "cpu", "ratio": 0.5}),
    "nvme-misplaced-keys": MICRO | zero(3, offload_optimizer={"device": "cpu", "buffer_size": 1e8}),
    "ds-unknown-key": MICRO | zero(2, reduce_buket_size=1),
    "ds-gather-16bit-alias": MICRO
    | zero(3, stage3_gather_16bit_weights_on_model_save=True, gather_16bit_weights_on_model_save=True),
}
ACCEPTED = {  # reported as errors, and DeepSpeed 0.19.8 takes them
    "ds-bool-as-string": MICRO | {"bf16": {"enabled": "true"}},
    "offload-param-needs-stage3": MICRO | zero(2, offload_param={"device": "cpu"}),
    "offload-needs-zero": MICRO | zero(0, offload_optimizer={"device": "cpu"}),
    "ds-unknown-key at the top level": MICRO | {"foo": 1},
    "ds-auto-without-hf in a block": MICRO | zero(2, reduce_bucket_size="auto"),
    "ds-legacy-bfloat16-key": MICRO | {"bfloat16": {"enabled": True}},
    "ds-deprecated-cpu-offload": MICRO | zero(2, cpu_offload=True),
    "elastic-ckpt-zero3": MICRO | zero(3, elastic_checkpoint=True),
    "nvme-needs-path-aio": MICRO | zero(3, offload_optimizer={"device": "nvme"}),
}


@pytest.fixture(scope="module")
def deepspeed_config() -> Any:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig

    return DeepSpeedConfig


@pytest.mark.engines
@pytest.mark.parametrize("name", REFUSED)
def test_deepspeed_refuses(name: str, deepspeed_config: Any) -> None:
    with pytest.raises(Exception):  # noqa: B017 - assertions, pydantic and DeepSpeed's own
        deepspeed_config(copy.deepcopy(REFUSED[name]))


@pytest.mark.engines
@pytest.mark.parametrize("name", ACCEPTED)
def test_deepspeed_accepts(name: str, deepspeed_config: Any) -> None:
    deepspeed_config(copy.deepcopy(ACCEPTED[name]))


PLUGIN = {
    "fsdp2-reshard-type": {"fsdp_version": 2, "reshard_after_forward": "FULL_SHARD"},
    "fsdp2-reshard-type in version 1": {"fsdp_version": 1, "reshard_after_forward": True, "sharding_strategy": None},
    "fsdp2-forward-prefetch": {"fsdp_version": 2, "forward_prefetch": False},
    "fsdp2-local-state-dict": {"fsdp_version": 2, "state_dict_type": "LOCAL_STATE_DICT"},
}


@pytest.mark.engines
@pytest.mark.parametrize("name", PLUGIN)
def test_accelerate_refuses(name: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    with pytest.raises(ValueError):
        accelerate.FullyShardedDataParallelPlugin(**PLUGIN[name])


@pytest.mark.engines
def test_accelerate_defaults_and_legacy_keys() -> None:
    accelerate = pytest.importorskip("accelerate")
    assert accelerate.FullyShardedDataParallelPlugin().fsdp_version == 1
    plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2, backward_prefetch="BACKWARD_PRE")
    assert plugin.backward_prefetch is None
    assert plugin.auto_wrap_policy is None  # fsdp-no-wrap-policy, fsdp-version-default, fsdp2-legacy-keys


@pytest.mark.engines
def test_launcher_refuses_unsynchronised_loading() -> None:
    """``fsdp-efficient-loading-sync``."""
    pytest.importorskip("accelerate")
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    words = [
        "--use_fsdp",
        "--fsdp_sync_module_states",
        "false",
        "--mixed_precision",
        "no",
        "--num_machines",
        "1",
        "x.py",
    ]
    arguments = launch_command_parser().parse_args(words)
    arguments.fsdp_sync_module_states = False
    arguments.num_processes, arguments.dynamo_backend = 2, "no"
    with pytest.raises(ValueError, match="fsdp_sync_module_states"):
        prepare_multi_gpu_env(arguments)


@pytest.mark.engines
def test_trainer_refuses_both_precisions(tmp_path: Any) -> None:
    """``trainer-fp16-bf16-both``."""
    transformers = pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="At most one"):
        transformers.TrainingArguments(output_dir=str(tmp_path), fp16=True, bf16=True, use_cpu=True)


@pytest.mark.engines
def test_integers_do_not_flatten() -> None:
    """``fsdp-8bit``: the flat parameter of FSDP1 takes floats only."""
    import inspect

    flat_param = pytest.importorskip("torch.distributed.fsdp._flat_param")
    assert "is_floating_point" in inspect.getsource(flat_param.FlatParamHandle._validate_tensors_to_flatten)
