"""DeepSpeed JSON: each key to its knob, and each contradiction with its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from estimators.errors import IllegalCombination, InputError, NotModelled
from estimators.readers import Reading
from estimators.strategy import knobs_of

Read = Callable[..., Reading]


def zero(**keys: Any) -> dict[str, Any]:
    return {"train_micro_batch_size_per_gpu": 1, "zero_optimization": keys}


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"stage": 0}, "zero0"),
        ({"stage": 1}, "zero1"),
        ({"stage": "2"}, "zero2"),
        ({"stage": 3.0}, "zero3"),
        ({}, "zero0"),
        ({"stage": 2, "reduce_bucket_size": 5e8}, "zero2:reduce_bucket_size=500000000"),
        ({"stage": 2, "reduce_bucket_size": "5e8"}, "zero2:reduce_bucket_size=500000000"),
        ({"stage": 2, "reduce_bucket_size": "500000000"}, "zero2:reduce_bucket_size=500000000"),
        ({"stage": 3, "prefetch_bucket_size": 7}, "zero3:prefetch_bucket_size=7"),
        ({"stage": 3, "zero_hpz_partition_size": 8, "zero_quantized_weights": True}, "zero3:hpz=8,quantized_weights"),
        ({"stage": 3, "mics_shard_size": 8}, "zero3:mics=8"),
        ({"stage": 3, "mics_shard_size": -1}, "zero3"),
        ({"stage": 1, "cpu_offload": True}, "zero1+optimizer@cpu"),
        ({"stage": 2, "cpu_offload": False}, "zero2"),
        ({"stage": 3, "cpu_offload": True, "cpu_offload_param": True}, "zero3+optimizer@cpu+params@cpu"),
        ({"stage": 2, "offload_optimizer": {"device": "none", "pin_memory": True}}, "zero2"),
        ({"stage": 2, "offload_optimizer": None, "overlap_comm": None}, "zero2"),
        (
            {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5, "pin_memory": False}},
            "zero3:pin_memory=false,ratio=0.5+optimizer@cpu",
        ),
        (
            {
                "stage": 3,
                "offload_optimizer": {"device": "nvme", "nvme_path": "/n", "buffer_count": 5, "pipeline_read": True},
                "offload_param": {"device": "nvme", "nvme_path": "/n", "buffer_size": 2e8, "max_in_cpu": 0},
            },
            "zero3:max_in_cpu=0,optimizer_buffer_count=5,param_buffer_size=200000000,pipeline_read"
            "+optimizer@nvme+params@nvme",
        ),
        ({"stage": 3, "stage3_gather_fp16_weights_on_model_save": True}, "zero3:gather_16bit_on_save"),
    ],
)
def test_strategy(read: Read, keys: dict[str, Any], name: str) -> None:
    assert read(zero(**keys)).strategy.name == name


def test_deprecated_boolean_and_no_block(read: Read) -> None:
    assert read({"train_batch_size": 8, "zero_optimization": True}).strategy.name == "zero1"
    assert read({"train_batch_size": 8, "zero_optimization": False}).strategy.name == "zero0"
    assert read({"train_batch_size": 8}).strategy.name == "zero0"


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_knob_of_a_stage_can_be_said(read: Read, stage: int) -> None:
    """No knob of DeepSpeed without a key, but for zero.Init, which is a call and not a setting."""
    config: dict[str, Any] = zero(stage=stage)
    block = config["zero_optimization"]
    if stage:
        block["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if stage == 3:
        block["offload_param"] = {"device": "cpu"}
    for knob in knobs_of(f"zero{stage}"):
        value = {"bool": True, "int": 3, "float": 0.5}.get(str(knob.kind), "fp32")
        *path, key = knob.key.split(".")
        if path == ["data_types"]:
            config["data_types"] = {key: value}
        elif knob.name not in ("pin_memory", "zero_init"):
            target = block[path[0]] if path else block
            target[key] = value
    expected = {knob.name for knob in knobs_of(f"zero{stage}")} - {"zero_init"}
    assert set(read(config).strategy.options) == expected


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ({"bf16": {"enabled": True}}, {"precision": "bf16-mixed"}),
        ({"bfloat16": {"enabled": True}}, {"precision": "bf16-mixed"}),
        ({"fp16": {"enabled": True}}, {"precision": "fp16-mixed"}),
        ({"fp16": {"enabled": False}, "bf16": {"enabled": False}}, {"precision": "fp32"}),
        ({}, {"precision": "fp32"}),
        (
            {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}},
            {"precision": "bf16", "state_dtype": "bf16"},
        ),
        (
            {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
            {"precision": "bf16", "state_dtype": "fp32"},
        ),
        (
            {"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}},
            {"precision": "fp16", "state_dtype": "fp32"},
        ),
        (
            {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
            {"precision": "bf16-mixed", "param_dtype": "fp32"},
        ),
        ({"communication_data_type": "FP32"}, {"precision": "fp32", "reduce_dtype": "fp32"}),
        ({"optimizer": {"type": "AdamW"}}, {"precision": "fp32", "optimizer": "adamw-fused"}),
        ({"optimizer": {"type": "adam", "params": {"torch_adam": True}}}, {"precision": "fp32", "optimizer": "adamw"}),
        ({"optimizer": {"type": "Lion"}}, {"precision": "fp32", "optimizer": "lion"}),
        ({"optimizer": {"type": "Muon"}}, {"precision": "fp32", "optimizer": "muon"}),
        (
            {"optimizer": {"type": "SGD", "params": {"momentum": 0.9}}},
            {"precision": "fp32", "optimizer": "sgd-momentum"},
        ),
        ({"optimizer": {"type": "SGD"}}, {"precision": "fp32", "optimizer": "sgd"}),
    ],
)
def test_workload(read: Read, config: dict[str, Any], fields: dict[str, Any]) -> None:
    reading = read({**zero(stage=1), "gradient_accumulation_steps": 2, **config})
    assert dict(reading.workload) == {"micro_batch": 1, "grad_accum": 2, **fields}


REFUSED: list[tuple[dict[str, Any], str]] = [
    (zero(stage=4), r"config.json, line 1: zero_optimization.stage: 4 is out of range; give 0 to 3"),
    (zero(stage=-1), r"zero_optimization.stage: -1 is out of range"),
    (zero(stage="three"), r"zero_optimization.stage: 'three' is not a number"),
    (zero(stage=True), r"zero_optimization.stage: True is not a number"),
    (zero(stage=2, overlap_comm="true"), r"zero_optimization.overlap_comm: 'true' is text; write true without quotes"),
    (zero(stage=2, overlap_comm="maybe"), r"overlap_comm: 'maybe' is not true or false"),
    (zero(stage=2, reduce_bucket_size=0), r"reduce_bucket_size: 0 is outside 1 to"),
    (zero(stage=2, reduce_bucket_size=5.5), r"reduce_bucket_size: 5.5 is not a whole number"),
    (zero(stage=2, reduce_bucket_size=[1]), r"reduce_bucket_size: \[1\] is not a number"),
    (zero(stage=3, stage3_max_live_parameters=-5), r"stage3_max_live_parameters: -5 is outside"),
    (zero(stage=2, offload_optimizer=True), r'offload_optimizer: True is not a mapping; write \{"device": "cpu"\}'),
    (zero(stage=2, offload_optimizer={"device": "CPU"}), r"offload_optimizer.device: unknown value 'CPU'; write cpu"),
    (zero(stage=2, offload_optimizer={"device": "gpu"}), r"offload_optimizer.device: unknown value 'gpu'"),
    ({"zero_optimization": 3}, r'zero_optimization: 3 is not a mapping; write \{"stage": 2\}'),
    ({**zero(), "bf16": True}, r'bf16: True is not a mapping; write \{"enabled": true\}'),
    ({**zero(), "bf16": {"enabled": "true"}}, r"bf16.enabled: 'true' is text; write true without quotes"),
    ({**zero(), "optimizer": {"type": "AdmW"}}, r"optimizer.type: unknown optimizer 'AdmW'; write Adam, AdamW"),
    ({**zero(), "optimizer": {"type": "DeepSpeedCPUAdam"}}, r"takes its CPU Adam by itself when offloading"),
    ({**zero(), "data_types": {"grad_accum_dtype": "int4"}}, r"data_types.grad_accum_dtype: unknown value 'int4'"),
    ({"train_micro_batch_size_per_gpu": -2}, r"train_micro_batch_size_per_gpu: -2 is out of range; give 1 to"),
    ({"train_batch_size": "many"}, r"train_batch_size: 'many' is not a number"),
    ({**zero(), "gradient_clipping": "big"}, r"gradient_clipping: 'big' is not a number"),
]
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({**zero(), "bf16": {"enabled": True}, "fp16": {"enabled": True}}, r"fp16.enabled: both fp16 and bf16 are enabled"),
    (zero(stage=2, offload_param={"device": "cpu"}), r"zero_optimization.offload_param.device: zero2\+params@cpu"),
    (zero(stage=1, offload_optimizer={"device": "nvme"}), r"offload_optimizer.device: zero1\+optimizer@nvme"),
    (zero(stage=0, offload_optimizer={"device": "cpu"}), r"offload needs ZeRO"),
    (zero(stage=2, offload_optimizer={"device": "cpu", "ratio": 0.3}), r"ratio: 0.3 is a partial offload, which is st"),
    (zero(stage=2, cpu_offload=True, offload_optimizer={}), r"cpu_offload: is the old name of offload_optimizer"),
    (
        zero(stage=3, gather_16bit_weights_on_model_save=True, stage3_gather_16bit_weights_on_model_save=True),
        r"gather_16bit_weights_on_model_save: is another spelling of stage3_gather_16bit_weights_on_model_save",
    ),
    (
        {**zero(stage=1), "bf16": {"enabled": True, "bf16_optimizer_states": True}},
        r"needs bf16_master_weights_and_grads",
    ),
    ({**zero(), "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, r"needs ZeRO stage 1, 2 or 3"),
    ({**zero(stage=1), "optimizer": {"type": "OneBitAdam"}}, r"OneBitAdam cannot run under ZeRO"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED)
def test_refused(read: Read, config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(config)


@pytest.mark.parametrize(("config", "message"), CONTRADICTIONS)
def test_contradiction(read: Read, config: dict[str, Any], message: str) -> None:
    with pytest.raises(IllegalCombination, match=message):
        read(config)


@pytest.mark.parametrize(
    ("train", "micro", "steps", "ranks", "expected"),
    [
        (32, None, 4, 4, (2, 4)),
        (32, 2, None, 4, (2, 4)),
        (32, None, None, 4, (8, 1)),
        (None, 2, None, 4, (2, 1)),
        (32, 2, 4, 4, (2, 4)),
        (32, 2, 4, None, (2, 4)),
        (32, None, 4, None, (None, 4)),
        (None, 2, 3, 64, (2, 3)),
        (None, None, 3, None, (None, 3)),
    ],
)
def test_batch_triangle(
    read: Read, train: int | None, micro: int | None, steps: int | None, ranks: int | None, expected: tuple[int, int]
) -> None:
    config = {"zero_optimization": {"stage": 1}, "train_batch_size": train, "train_micro_batch_size_per_gpu": micro}
    workload = read({**config, "gradient_accumulation_steps": steps}, ranks=ranks).workload
    assert (workload.get("micro_batch"), workload.get("grad_accum")) == expected


@pytest.mark.parametrize(
    ("config", "ranks", "message"),
    [
        ({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 4}, 4,
         r"train_batch_size: 32 is not train_micro_batch_size_per_gpu 3 x gradient_accumulation_steps 4 x 4 GPUs = 48; "
         "write 48"),
        ({"train_batch_size": 30, "gradient_accumulation_steps": 4}, 4,
         r"30 is not a multiple of gradient_accumulation_steps 4 x 4 GPUs = 16; write 16 or 32"),
        ({"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2}, 4,
         r"7 is not a multiple of train_micro_batch_size_per_gpu 2 x 4 GPUs = 8; write 8"),
        ({"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}, None,
         r"7 is not a multiple of train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 1 = 2; write 6 or 8"),
    ],
)  # fmt: skip
def test_batch_triangle_refused(read: Read, config: dict[str, Any], ranks: int | None, message: str) -> None:
    with pytest.raises(IllegalCombination, match=message):
        read(config, ranks=ranks)


def test_errors_name_the_line(read: Read) -> None:
    with pytest.raises(InputError, match=r"^ds\.yaml, line 3: zero_optimization\.stage: 9 is out of range"):
        read("train_batch_size: 8\nzero_optimization:\n  stage: 9\n", name="ds.yaml")


def test_ignored_keys(read: Read) -> None:
    reading = read(
        {
            "train_batch_size": 8,
            "steps_per_print": 10,
            "_comment": "mine",
            "grad_clipping": 1.0,
            "zero_optimization": {
                "stage": 2,
                "stage3_max_live_parameters": 5,
                "overlap_com": True,
                "reduce_scatter": True,
            },
        }
    )
    ignored = {item.where: item for item in reading.ignored}
    assert set(ignored) == {
        "steps_per_print",
        "grad_clipping",
        "zero_optimization.stage3_max_live_parameters",
        "zero_optimization.overlap_com",
    }
    assert ignored["steps_per_print"].known
    assert ignored["zero_optimization.stage3_max_live_parameters"].why == "no effect at stage 2"
    assert ignored["zero_optimization.overlap_com"].suggestions[0] == "overlap_comm"
    assert ignored["grad_clipping"].suggestions == ("gradient_clipping",)
    assert not ignored["grad_clipping"].known
    assert str(ignored["grad_clipping"]).endswith("unknown to DeepSpeed 0.19.8; did you mean gradient_clipping?")


def test_gaps_are_not_errors(read: Read) -> None:
    reading = read({**zero(stage=1), "optimizer": {"type": "Lamb"}, "tensor_parallel": {"autotp_size": 4}})
    assert set(reading.gaps) == {"optimizer", "strategy"}
    with pytest.raises(NotModelled, match=r"config.json: optimizer Lamb is not modelled"):
        reading.require_modelled(["strategy"])
    reading.require_modelled(["strategy", "optimizer"])


def test_auto_means_hugging_face(read: Read) -> None:
    reading = read({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}, "bf16": {"enabled": "auto"}})
    assert reading.auto == ("reduce_bucket_size", "precision")
    assert reading.workload == {"stack": "trainer"}
    assert reading.values["precision"].where == "bf16.enabled"
    assert read(zero(stage=3)).workload.get("stack") is None


def test_notes_say_what_is_not_estimated(read: Read) -> None:
    reading = read({**zero(stage=3, stage3_allgather_sequential=True, zenflow={}, mics_shard_size=2), "amp": {}})
    text = " ".join(reading.notes)
    for word in (
        "stage3_allgather_sequential changes",
        "zenflow changes",
        "mics_shard_size: DeepSpeed",
        "amp: DeepSpeed",
    ):
        assert word in text
    assert "differs between" in " ".join(
        read(
            zero(stage=3, offload_optimizer={"device": "cpu", "pin_memory": False}, offload_param={"device": "cpu"})
        ).notes
    )


def test_facts(read: Read) -> None:
    reading = read(
        {**zero(stage=2), "gradient_clipping": "auto", "aio": {"block_size": 4}, "activation_checkpointing": {}}
    )
    assert reading.facts["gradient_clipping"].value == "auto"
    assert reading.facts["aio"].value == {"block_size": 4}
    assert "checkpointing" not in reading.workload
