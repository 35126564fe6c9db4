"""TrainingArguments and its supersets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from estimators.errors import InputError
from estimators.readers import Reading

Read = Callable[..., Reading]


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({}, "ddp"),
        ({"fsdp": ""}, "ddp"),
        ({"fsdp": True}, "fsdp-full-shard"),
        ({"fsdp": "full_shard auto_wrap"}, "fsdp-full-shard"),
        ({"fsdp": ["shard_grad_op", "offload"]}, "fsdp-shard-grad-op+params@cpu"),
        ({"fsdp": "shard_grad_op", "fsdp_config": {"reshard_after_forward": "true"}}, "fsdp-full-shard"),
        ({"fsdp": True, "fsdp_config": {"fsdp_cpu_offload": True}}, "fsdp-full-shard+params@cpu"),
        ({"fsdp": True, "fsdp_config": {"fsdp_offload_params": True}}, "fsdp-full-shard"),
        ({"fsdp": True, "fsdp_config": {"auto_wrap_policy": "NO_WRAP"}}, "fsdp-full-shard:wrap=none"),
        (
            {"fsdp": "shard_grad_op", "fsdp_config": {"version": 1}},  # accelerate's plugin never sees the strategy
            "fsdp1-full-shard:backward_prefetch=none,use_orig_params",
        ),
        (
            {"fsdp": True, "fsdp_config": {"version": 1, "backward_prefetch": "backward_post",
                                           "forward_prefetch": "true", "use_orig_params": False,
                                           "limit_all_gathers": "no"}},
            "fsdp1-full-shard:backward_prefetch=post,forward_prefetch=1,limit_all_gathers=false,use_orig_params=false",
        ),
        ({"deepspeed": {"zero_optimization": {"stage": 3}}}, "zero3:zero_init"),
        ({"deepspeed": {"zero_optimization": {"stage": "auto"}}}, "zero2"),
        ({"ddp_bucket_cap_mb": 50, "ddp_static_graph": True}, "ddp:bucket_cap_mb=50,static_graph"),
        (
            {"fsdp": True, "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}},
            "fsdp-full-shard:sync_each_batch",
        ),
    ],
)  # fmt: skip
def test_strategy(read: Read, keys: dict[str, Any], name: str) -> None:
    assert read({"learning_rate": 1e-5, **keys}).strategy.name == name


@pytest.mark.parametrize(
    ("keys", "fields"),
    [
        ({"bf16": True}, {"precision": "bf16-mixed"}),
        ({"fp16": True, "bf16": False}, {"precision": "fp16-mixed"}),
        ({"bf16": "auto"}, {}),
        ({"gradient_checkpointing": True}, {"checkpointing": "full"}),
        ({"activation_checkpointing": False, "gradient_checkpointing": True}, {"checkpointing": "none"}),
        (
            {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"every_n_layers": 2}},
            {"checkpointing": "every-2"},
        ),
        (
            {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"offload": True}},
            {"checkpointing": "offload"},
        ),
        ({"optim": "adamw_torch"}, {"optimizer": "adamw"}),
        ({"optim": "adamw_8bit"}, {"optimizer": "adamw-8bit"}),
        ({"optim": "sgd", "optim_args": "momentum = 0.9"}, {"optimizer": "sgd-momentum"}),
        ({"torch_compile_mode": "default"}, {"compile": True}),
        ({"torch_compile": False}, {"compile": False}),
        ({"use_liger_kernel": True}, {"loss": "fused"}),
        ({"use_liger_kernel": True, "liger_kernel_config": {"fused_linear_cross_entropy": False}}, {}),
        ({"max_seq_length": 4096}, {"seq_len": 4096, "stack": "trl"}),
        ({"per_device_eval_batch_size": 4, "gradient_accumulation_steps": 8}, {"grad_accum": 8}),
    ],
)
def test_workload_of_a_part(read: Read, keys: dict[str, Any], fields: dict[str, Any]) -> None:
    assert dict(read({"learning_rate": 1e-5, **keys}).workload) == fields


def test_a_whole_file_speaks_through_its_defaults(read: Read) -> None:
    reading = read({"output_dir": "out"})
    assert dict(reading.workload) == {
        "micro_batch": 8, "grad_accum": 1, "optimizer": "adamw-fused", "checkpointing": "none", "precision": "fp32",
    }  # fmt: skip
    assert not any(value.given for value in reading.values.values())


def deepspeed(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": 2}, **keys}


def test_deepspeed_fills_auto_from_the_arguments(read: Read) -> None:
    config = deepspeed(
        train_micro_batch_size_per_gpu="auto", gradient_accumulation_steps="auto", bf16={"enabled": "auto"}
    )
    reading = read({"deepspeed": config, "per_device_train_batch_size": 4, "bf16": True, "output_dir": "out"})
    assert (reading.workload["micro_batch"], reading.workload["grad_accum"]) == (4, 1)
    assert reading.workload["precision"] == "bf16-mixed"
    assert reading.auto == ()
    without_block = read({"deepspeed": deepspeed(), "fp16": True})
    assert without_block.workload == {"precision": "fp16-mixed"}


def test_deepspeed_optimizer_wins(read: Read) -> None:
    reading = read({"deepspeed": deepspeed(optimizer={"type": "Lion"}), "optim": "adamw_torch"})
    assert reading.workload["optimizer"] == "lion"
    assert "optim" in [item.where for item in reading.ignored]


def test_files_are_followed_from_the_folder(read: Read, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(deepspeed(gradient_accumulation_steps=2)))
    reading = read({"deepspeed": "ds.json"})
    assert reading.values["grad_accum"].where == "ds.json: gradient_accumulation_steps"
    (tmp_path / "fsdp.json").write_text('{"fsdp_version": 1}')
    assert read({"fsdp": True, "fsdp_config": "fsdp.json"}).strategy.engine == "fsdp1"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"bf16": True, "fp16": True}, r"config.json, line 1: fp16: both bf16 and fp16 are true"),
    ({"bf16": "true"}, r"bf16: 'true' is text; write true without quotes"),
    ({"bf16": "yes please"}, r"bf16: 'yes please' is not true or false"),
    ({"per_device_train_batch_size": 0}, r"per_device_train_batch_size: 0 is out of range"),
    ({"per_device_train_batch_size": -4}, r"per_device_train_batch_size: -4 is out of range"),
    ({"gradient_accumulation_steps": 1.5}, r"gradient_accumulation_steps: 1.5 is not a whole number"),
    ({"optim": "adamw_torch_fusd"}, r"optim: unknown value 'adamw_torch_fusd'; write adamw_torch_fused"),
    ({"fsdp": True, "deepspeed": {"zero_optimization": {}}}, r"fsdp: excludes deepspeed"),
    ({"fsdp": "full_shrd"}, r"fsdp: unknown option 'full_shrd'; write full_shard"),
    ({"fsdp": 3}, r"fsdp: write true and say the rest in fsdp_config"),
    ({"fsdp": "hybrid_shard"}, r"fsdp: hybrid_shard exists in FSDP1 only"),
    ({"fsdp": True, "fsdp_config": {"version": 4}}, r"fsdp_config.version: 4 is out of range"),
    ({"fsdp": True, "fsdp_config": {"fsdp_version": 2, "version": 1}}, r"version: is another spelling of fsdp_version"),
    ({"fsdp": True, "fsdp_config": {"cpu_offload": "false"}}, r"cpu_offload: 'false' is text"),
    ({"fsdp": True, "fsdp_config": {"reshard_after_forward": "full_shard"}}, r"'full_shard' is not true or false"),
    ({"fsdp": True, "fsdp_config": {"auto_wrap_policy": "no_wrap"}}, r"unknown value 'no_wrap'; write NO_WRAP"),
    (
        {"fsdp": True, "fsdp_config": {"activation_checkpointing": True}, "gradient_checkpointing": True},
        r"gradient_checkpointing: excludes fsdp_config.activation_checkpointing",
    ),
    ({"deepspeed": "gone.json"}, r"deepspeed: no file 'gone.json' beside config.json"),
    ({"deepspeed": "x" * 5000}, r"deepspeed: no file"),
    ({"deepspeed": 7}, r"deepspeed: 7 is not a mapping; write a path or the configuration"),
    (
        {"deepspeed": deepspeed(train_micro_batch_size_per_gpu=2), "per_device_train_batch_size": 4},
        r"per_device_train_batch_size: 4 differs from deepspeed.train_micro_batch_size_per_gpu 2",
    ),
    (
        {"deepspeed": deepspeed(fp16={"enabled": True}), "bf16": True},
        r"bf16: true, but deepspeed.fp16.enabled makes the run fp16-mixed",
    ),
]


@pytest.mark.parametrize(("keys", "message"), REFUSED)
def test_refused(read: Read, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read({"learning_rate": 1e-5, **keys})


def test_supersets_leave_gaps_and_notes(read: Read) -> None:
    reading = read({"finetuning_type": "lora", "lora_rank": 8, "cutoff_len": 1024, "optim": "lion_8bit", "bf16": True})
    assert "give --method" in reading.gaps["method"] and "lion_8bit is not modelled" in reading.gaps["optimizer"]
    assert "lora_rank 8 is not an argument of the Trainer; give --lora-rank" in reading.notes
    assert dict(reading.workload) == {"stack": "llamafactory", "precision": "bf16-mixed", "seq_len": 1024}
    assert "method" not in read({"finetuning_type": "full", "bf16": True}).gaps


def test_ignored_keys(read: Read) -> None:
    reading = read({"per_device_train_batchsize": 4, "learning_rate": 1, "_note": "x", "fsdp": True, "ddp_timeout": 5})
    ignored = {item.where: item for item in reading.ignored}
    assert set(ignored) == {"per_device_train_batchsize", "learning_rate", "ddp_timeout"}
    assert ignored["per_device_train_batchsize"].suggestions[0] == "per_device_train_batch_size"
    assert ignored["learning_rate"].known
