"""accelerate's YAML: what the launcher makes of it, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from estimators.errors import IllegalCombination, InputError
from estimators.readers import Reading

Read = Callable[..., Reading]


def fsdp(*lines: str, top: str = "") -> str:
    return "\n".join(["distributed_type: FSDP", top, "fsdp_config:", "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
                      *("  " + line for line in lines)])  # fmt: skip


V1 = "backward_prefetch=none,use_orig_params"


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ([], f"fsdp1-full-shard:{V1}"),  # fsdp_version absent is 1
        (["fsdp_version: 2"], "fsdp-full-shard"),
        (["version: '2'"], "fsdp-full-shard"),  # the launcher adds the prefix
        (["fsdp_version: 2", "fsdp_reshard_after_forward: false"], "fsdp-shard-grad-op"),
        (["fsdp_version: 2", "fsdp_reshard_after_forward: 'no'"], "fsdp-shard-grad-op"),
        (["fsdp_version: 2", "fsdp_sharding_strategy: SHARD_GRAD_OP"], "fsdp-full-shard"),  # not read
        (["fsdp_version: 2", "fsdp_offload_params: true"], "fsdp-full-shard+params@cpu"),
        (["fsdp_sharding_strategy: SHARD_GRAD_OP"], f"fsdp1-shard-grad-op:{V1}"),
        (["fsdp_sharding_strategy: 2"], f"fsdp1-shard-grad-op:{V1}"),
        (["fsdp_sharding_strategy: '3'"], f"fsdp1-no-shard:{V1}"),
        (["fsdp_sharding_strategy: hybrid_shard"], f"fsdp1-hybrid-shard:{V1}"),
        (["fsdp_reshard_after_forward: SHARD_GRAD_OP"], f"fsdp1-full-shard:{V1}"),  # not read
        (["fsdp_offload_params: 'true'"], f"fsdp1-full-shard:{V1}+params@cpu"),
        (["fsdp_backward_prefetch: BACKWARD_PRE"], "fsdp1-full-shard:backward_prefetch=pre,use_orig_params"),
        (["fsdp_backward_prefetch: 2"], "fsdp1-full-shard:backward_prefetch=post,use_orig_params"),
        (
            ["fsdp_use_orig_params: false", "fsdp_forward_prefetch: true"],
            "fsdp1-full-shard:backward_prefetch=none,forward_prefetch=1,use_orig_params=false",
        ),
    ],
)
def test_fsdp_strategy(read: Read, lines: list[str], name: str) -> None:
    assert read(fsdp(*lines)).strategy.name == name


def test_fsdp_without_a_policy_is_one_unit(read: Read) -> None:
    reading = read("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n")
    assert reading.strategy.name == "fsdp-full-shard:wrap=none"
    assert not reading.values["wrap"].given
    assert "one FSDP unit" in reading.notes[-1]


def test_hybrid_of_version_2(read: Read) -> None:
    mesh = "parallelism_config: {parallelism_config_dp_replicate_size: 2, parallelism_config_dp_shard_size: 8}"
    assert read(fsdp("fsdp_version: 2", top=mesh)).strategy.name == "fsdp-hybrid-shard:shard=8"
    with pytest.raises(IllegalCombination, match="parallelism_config: needs fsdp_version 2"):
        read(fsdp(top=mesh))
    beyond = read(fsdp("fsdp_version: 2", top="parallelism_config: {parallelism_config_tp_size: 2}"))
    assert "tp above 1" in beyond.gaps["strategy"]
    with pytest.raises(IllegalCombination, match="needs parallelism_config_dp_shard_size above 1"):
        read(fsdp("fsdp_version: 2", top="parallelism_config: {parallelism_config_dp_replicate_size: 2}"))


def test_fsdp_facts_and_fields(read: Read) -> None:
    reading = read(
        fsdp("fsdp_version: 2", "fsdp_activation_checkpointing: true", "fsdp_transformer_layer_cls_to_wrap: A,B",
             "fsdp_min_num_params: 2000")
    )  # fmt: skip
    assert reading.workload == {"stack": "accelerate", "precision": "fp32", "checkpointing": "full"}
    facts = {name: value.value for name, value in reading.facts.items()}
    assert facts == {
        "fsdp_version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "wrap_classes": ("A", "B"),
        "min_num_params": 2000, "state_dict_type": "SHARDED_STATE_DICT", "cpu_ram_efficient_loading": True,
        "sync_module_states": True,
    }  # fmt: skip
    offload = fsdp("fsdp_version: 2", "fsdp_activation_checkpointing: true",
                   "fsdp_activation_checkpointing_offload: true")  # fmt: skip
    assert read(offload).workload["checkpointing"] == "offload"


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ("{}", "zero2:"),  # accelerate's default stage
        ("{zero_stage: 1, offload_optimizer_device: cpu}", "zero1+optimizer@cpu"),
        ("{zero_stage: 3}", "zero3:gather_16bit_on_save=false,zero_init"),
        ("{zero_stage: 3, zero3_init_flag: false}", "zero3:gather_16bit_on_save=false,zero_init=false"),
        (
            "{zero_stage: 3, zero3_save_16bit_model: 'yes', offload_optimizer_device: nvme, offload_param_device: CPU}",
            "zero3:gather_16bit_on_save,zero_init+optimizer@nvme+params@cpu",
        ),
    ],
)
def test_deepspeed_inline(read: Read, keys: str, name: str) -> None:
    assert read(f"distributed_type: DEEPSPEED\ndeepspeed_config: {keys}\n").strategy.name == name.rstrip(":")


def test_deepspeed_keys_that_the_yaml_does_not_read(read: Read) -> None:
    reading = read("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, stage3_max_live_parameters: 5}\n")
    assert "max_live_parameters" not in reading.strategy.options
    assert "belong in deepspeed_config_file" in reading.ignored[0].why and not reading.ignored[0].known


def test_deepspeed_file_uses_the_processes_for_the_batch(read: Read, tmp_path: Path) -> None:
    config = {"train_batch_size": 32, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": "auto"}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    text = "distributed_type: DEEPSPEED\nnum_processes: {}\ndeepspeed_config: {{deepspeed_config_file: ds.json}}\n"
    reading = read(text.format(4))
    assert reading.workload["micro_batch"] == 2
    assert reading.strategy.name == "zero2"
    assert [path.name for path in reading.files] == ["config.yaml", "ds.json"]
    with pytest.raises(IllegalCombination, match=r"ds.json, line 1: train_batch_size: 32 is not a multiple .* 5 GPUs"):
        read(text.format(5))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("compute_environment: LOCAL_MACHINE", r"distributed_type: is absent"),
        ("distributed_type: MULTI_GPUS", r"distributed_type: unknown value 'MULTI_GPUS'; write MULTI_GPU"),
        ("distributed_type: 3", r"distributed_type: 3 is not text"),
        ("distributed_type: MULTI_GPU\nnum_processes: 1", r"num_processes: 1 with distributed_type MULTI_GPU"),
        ("distributed_type: MULTI_GPU\nnum_processes: many", r"line 2: num_processes: 'many' is not a number"),
        ("distributed_type: 'NO'\nmixed_precision: no", r"mixed_precision: false is a boolean .* write 'no'"),
        ("distributed_type: 'NO'\nmixed_precision: bf32", r"mixed_precision: unknown value 'bf32'; write no or bf16"),
        (fsdp("fsdp_version: 3"), r"fsdp_config.fsdp_version: 3 is out of range; give 1 to 2"),
        (fsdp("fsdp_version: 2", "version: 2"), r"fsdp_config.version: is another spelling of fsdp_version"),
        (fsdp("fsdp_version: 2", "fsdp_reshard_after_forward: FULL_SHARD"), r"'FULL_SHARD' is not true or false"),
        (fsdp("fsdp_sharding_strategy: FULL"), r"unknown value 'FULL'; write FULL_SHARD \(1\), SHARD_GRAD_OP \(2\)"),
        (fsdp("fsdp_sharding_strategy: 9"), r"unknown value '9'"),
        (fsdp("fsdp_backward_prefetch: always"), r"unknown value 'always'; write BACKWARD_PRE \(1\)"),
        (fsdp("fsdp_state_dict_type: HALF"), r"fsdp_state_dict_type: unknown value 'HALF'"),
        (fsdp("fsdp_sync_module_states: false"), r"sync_module_states: false with .* true \(the launcher's default\)"),
        (
            fsdp("fsdp_version: 2", "fsdp_activation_checkpointing_offload: true"),
            r"needs fsdp_activation_checkpointing",
        ),
        (
            fsdp("fsdp_activation_checkpointing: true", "fsdp_activation_checkpointing_offload: true"),
            r"needs fsdp_version 2",
        ),
        (fsdp("fsdp_sharding_strategy: NO_SHARD", "fsdp_offload_params: true"), r"fsdp1-no-shard has no offload"),
        ("distributed_type: FSDP\nfsdp_config: 3", r"fsdp_config: 3 is not a mapping"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 5}", r"zero_stage: 5 is out of range"),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2, offload_param_device: cpu}",
            r"deepspeed_config.offload_param_device: zero2\+params@cpu: parameters can be offloaded at stage 3 only",
        ),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: gone.json}",
            r"line 2: deepspeed_config.deepspeed_config_file: no file 'gone.json' beside config.yaml",
        ),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: gone.json, zero_stage: 2}",
            r"deepspeed_config.zero_stage: accelerate refuses it beside deepspeed_config_file",
        ),
        (
            "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config: {deepspeed_config_file: gone.json}",
            r"mixed_precision: accelerate refuses it beside deepspeed_config_file",
        ),
    ],
)
def test_refused(read: Read, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(text)


def test_a_file_that_names_itself_is_read_once(read: Read) -> None:
    with pytest.raises(InputError, match=r"config.yaml: zero_optimization: is absent"):
        read("distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: config.yaml}")


def test_other_kinds(read: Read) -> None:
    assert read("distributed_type: NO\nnum_processes: 4\n").num_processes == 1  # a YAML boolean, as accelerate takes it
    assert read("distributed_type: MULTI_NPU\n").strategy.name == "ddp"
    assert "MEGATRON_LM" in read("distributed_type: MEGATRON_LM\nmegatron_lm_config: {}\n").gaps["strategy"]
    assert "fp8" in read("distributed_type: MULTI_GPU\nmixed_precision: fp8\n").gaps["precision"]
    dynamo = read("distributed_type: MULTI_GPU\ndynamo_config: {dynamo_backend: INDUCTOR}\n")
    assert dynamo.workload["compile"] is True
    assert read("distributed_type: MULTI_GPU\nfp16: true\n").workload["precision"] == "fp16-mixed"


def test_ignored_keys(read: Read) -> None:
    reading = read("distributed_type: MULTI_GPU\nnum_proceses: 4\ndebug: true\nfsdp_config: {fsdp_version: 2}\n")
    ignored = {item.where: item for item in reading.ignored}
    assert ignored["fsdp_config"].why == "read under distributed_type FSDP only"
    assert ignored["num_proceses"].suggestions[0] == "num_processes" and not ignored["num_proceses"].known
    assert ignored["debug"].known and ignored["debug"].line == 3
