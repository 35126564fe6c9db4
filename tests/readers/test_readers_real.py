"""The readers against the parsers themselves: deepspeed, accelerate's launcher and plugin, TrainingArguments.

Each engine is imported once and asked for the values that it makes of the same file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from estimators.errors import InputError
from estimators.readers import Reading, read_config, trainer_keys
from estimators.readers.deepspeed_keys import NOT_ESTIMATED, OPTIMIZERS, SPELLINGS, TOP_OTHER, ZERO_KNOBS, ZERO_OTHER

pytestmark = pytest.mark.engines
CONFIGS = Path(__file__).parent / "configs"
Read = Callable[..., Reading]

# ----------------------------------------------------------------------------------------------------------- DeepSpeed

BASE = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}
ZERO: list[dict[str, Any]] = [
    {},
    {"stage": 1},
    {"stage": "2", "reduce_bucket_size": "1000", "overlap_comm": True, "contiguous_gradients": False},
    {"stage": 2, "allgather_bucket_size": 2e8, "round_robin_gradients": True, "reduce_scatter": False},
    {"stage": 2, "cpu_offload": True},
    {"stage": 2, "cpu_offload": False},
    {"stage": 1, "offload_optimizer": {"device": "cpu", "pin_memory": False}},
    {"stage": 3, "cpu_offload": True, "cpu_offload_param": True, "cpu_offload_use_pin_memory": False},
    {"stage": 3, "sub_group_size": 1e8, "stage3_max_live_parameters": 5, "max_reuse_distance": 6},
    {"stage": 3, "prefetch_bucket_size": 7, "stage3_param_persistence_threshold": 1e4, "zero_hpz_partition_size": 8},
    {"stage": 3, "zero_quantized_weights": True, "zero_quantized_gradients": True},
    {"stage": 3, "stage3_module_granularity_threshold": 9, "stage3_max_reuse_distance": 0},
    {"stage": 3, "stage3_gather_fp16_weights_on_model_save": True, "stage3_model_persistence_threshold": 11},
    {"stage": 3, "gather_16bit_weights_on_model_save": True, "zero_quantized_nontrainable_weights": True},
    {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/n", "buffer_count": 7, "ratio": 0.5}},
    {"stage": 3, "offload_param": {"device": "cpu", "buffer_size": 5e7, "max_in_cpu": 3, "buffer_count": 2}},
    {"stage": 3, "offload_optimizer": {"device": "cpu", "pipeline_read": True, "pipeline_write": True}},
    {"stage": 3, "reduce_bucket_size": "auto", "offload_param": {"device": "auto"}},
]  # fmt: skip
OFFLOAD_FIELDS = {
    "pipeline_read": ("offload_optimizer", "pipeline_read"), "pipeline_write": ("offload_optimizer", "pipeline_write"),
    "ratio": ("offload_optimizer", "ratio"), "optimizer_buffer_count": ("offload_optimizer", "buffer_count"),
    "param_buffer_count": ("offload_param", "buffer_count"), "param_buffer_size": ("offload_param", "buffer_size"),
    "max_in_cpu": ("offload_param", "max_in_cpu"),
}  # fmt: skip


@pytest.fixture(scope="module")
def config_class() -> Any:
    return pytest.importorskip("deepspeed.runtime.config").DeepSpeedConfig


@pytest.mark.parametrize("zero", ZERO, ids=range(len(ZERO)))
def test_deepspeed_reads_the_same_values(read: Read, config_class: Any, zero: dict[str, Any]) -> None:
    data = {**BASE, "zero_optimization": zero}
    theirs = config_class(json.loads(json.dumps(data))).zero_config
    strategy = read(data).strategy
    assert strategy.stage == int(theirs.stage)
    for block, ours in (("offload_optimizer", strategy.optimizer), ("offload_param", strategy.params)):
        device = getattr(theirs, block).device if getattr(theirs, block) else "none"
        assert (ours or "none") == device
    fields = {knob.name: key.removeprefix("stage3_") for key, knob in ZERO_KNOBS.items()}
    for name, value in strategy.options.items():
        if name == "pin_memory":
            block = theirs.offload_optimizer if strategy.optimizer else theirs.offload_param
            assert value == block.pin_memory
        elif name in OFFLOAD_FIELDS:
            block, field = OFFLOAD_FIELDS[name]
            assert value == getattr(getattr(theirs, block), field)
        else:
            assert value == getattr(theirs, fields[name]), name


@pytest.mark.parametrize(
    "batch",
    [
        {"train_batch_size": 32},
        {"train_batch_size": 32, "gradient_accumulation_steps": 4},
        {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4},
        {"train_micro_batch_size_per_gpu": 4},
        {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
        {"train_batch_size": 33, "train_micro_batch_size_per_gpu": 4},
        {"train_batch_size": 33, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
    ],
)
def test_deepspeed_infers_the_same_batch(read: Read, config_class: Any, batch: dict[str, int]) -> None:
    try:
        theirs = config_class(dict(batch))  # one rank: nothing is initialised
    except AssertionError:
        with pytest.raises(InputError):
            read(batch, ranks=1)
        return
    ours = read(batch, ranks=1).workload
    assert ours["micro_batch"] == theirs.train_micro_batch_size_per_gpu
    assert ours["grad_accum"] == theirs.gradient_accumulation_steps


@pytest.mark.parametrize(
    "data",
    [
        {"fp16": {"enabled": True}, "bf16": {"enabled": True}},
        {"bf16": {"enabled": True, "bf16_optimizer_states": True}},
        {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}},
        {"zero_optimization": {"stage": 3, "reduce_bucket_size": 0}},
        {"zero_optimization": {"stage": 3, "reduce_bucket_size": 1.5}},
        {"zero_optimization": {"stage": 4}},
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "CPU"}}},
        {"zero_optimization": {"stage": 2, "offload_optimizer": True}},
        {"zero_optimization": {"stage": 2, "cpu_offload": True, "offload_optimizer": {"device": "cpu"}}},
        {"zero_optimization": {"prefetch_bucket_size": 1, "stage3_prefetch_bucket_size": 1}},
        {"bf16": True},
    ],
)
def test_deepspeed_refuses_too(read: Read, config_class: Any, data: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        read({**BASE, **data})
    with pytest.raises((AssertionError, ValueError, TypeError)):
        config_class({**BASE, **data})


def test_every_key_of_deepspeed_is_known(config_class: Any) -> None:
    from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    ours = {*ZERO_KNOBS, *ZERO_OTHER, *NOT_ESTIMATED, "stage", "offload_optimizer", "offload_param"}
    ours |= {"cpu_offload", "cpu_offload_param", *(name for names in SPELLINGS.values() for name in names)}
    theirs = {name for name in DeepSpeedZeroConfig.model_fields}
    theirs |= {info.alias for info in DeepSpeedZeroConfig.model_fields.values() if info.alias}
    assert theirs <= ours, theirs - ours
    assert set(DEEPSPEED_OPTIMIZERS) <= {*OPTIMIZERS, "adagrad", "lamb"}
    assert {"steps_per_print", "scheduler"} <= TOP_OTHER


@pytest.mark.parametrize("name", ["document1.json", "document2.json"])
def test_the_examples_of_the_documents(config_class: Any, name: str) -> None:
    theirs = config_class(str(CONFIGS / name))
    ours = read_config(CONFIGS / name, ranks=1)
    assert ours.strategy.stage == theirs.zero_config.stage == 3
    assert theirs.float16_config.enabled and ours.workload["precision"] == "fp16-mixed"
    assert ours.workload["micro_batch"] == theirs.train_micro_batch_size_per_gpu
    assert ours.workload["grad_accum"] == theirs.gradient_accumulation_steps


# ---------------------------------------------------------------------------------------------------------- accelerate


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Any]]:
    """The FSDP plugin that a training process makes under ``accelerate launch --config_file``."""
    launch = pytest.importorskip("accelerate.commands.launch")
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    def make(path: Path) -> Any:
        arguments = launch.launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
        arguments.nondefault = set()  # set by the parser's own actions when a flag is given
        arguments, _, _ = launch._validate_launch_command(arguments)
        for name, value in prepare_multi_gpu_env(arguments).items():
            if name.startswith("FSDP_"):
                # The broadcast wants a device; this machine may have none.
                monkeypatch.setenv(name, "false" if name in ("FSDP_SYNC_MODULE_STATES", RAM) else value)
        return FullyShardedDataParallelPlugin()

    yield make


RAM = "FSDP_CPU_RAM_EFFICIENT_LOADING"
FSDP = [
    [],
    ["fsdp_version: 2"],
    ["fsdp_version: 2", "fsdp_reshard_after_forward: false"],
    ["fsdp_version: 2", "fsdp_reshard_after_forward: 'no'", "fsdp_offload_params: true"],
    ["fsdp_version: 2", "fsdp_sharding_strategy: SHARD_GRAD_OP"],
    ["fsdp_version: 2", "fsdp_backward_prefetch: BACKWARD_PRE", "fsdp_use_orig_params: true"],
    ["fsdp_version: 2", "fsdp_forward_prefetch: true", "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP"],
    ["fsdp_sharding_strategy: SHARD_GRAD_OP", "fsdp_backward_prefetch: BACKWARD_POST"],
    ["fsdp_sharding_strategy: 2", "fsdp_backward_prefetch: 1"],
    ["fsdp_sharding_strategy: hybrid_shard", "fsdp_use_orig_params: 'false'"],
    ["fsdp_sharding_strategy: 3", "fsdp_forward_prefetch: true"],
    ["fsdp_reshard_after_forward: SHARD_GRAD_OP", "fsdp_backward_prefetch: NO_PREFETCH"],
    ["fsdp_activation_checkpointing: true", "fsdp_state_dict_type: SHARDED_STATE_DICT"],
    ["fsdp_auto_wrap_policy: SIZE_BASED_WRAP", "fsdp_offload_params: 'on'"],
    ["version: 2", "offload_params: true", "auto_wrap_policy: transformer_based_wrap"],
]
FSDP1_NAMES = {
    "FULL_SHARD": "full-shard", "SHARD_GRAD_OP": "shard-grad-op", "NO_SHARD": "no-shard",
    "HYBRID_SHARD": "hybrid-shard",
}  # fmt: skip


@pytest.mark.parametrize("lines", FSDP, ids=range(len(FSDP)))
def test_accelerate_makes_the_same_plugin(tmp_path: Path, plugin: Callable[[Path], Any], lines: list[str]) -> None:
    path = tmp_path / "fsdp.yaml"
    body = "\n".join("  " + line for line in lines or ["fsdp_min_num_params: 5"])
    path.write_text(f"distributed_type: FSDP\nnum_processes: 4\nnum_machines: 1\nfsdp_config:\n{body}\n")
    theirs, ours = plugin(path), read_config(path)
    strategy, facts = ours.strategy, {name: value.value for name, value in ours.facts.items()}
    assert strategy.engine == f"fsdp{theirs.fsdp_version}"
    if theirs.fsdp_version == 2:
        assert strategy.sharding == ("full-shard" if theirs.reshard_after_forward else "shard-grad-op")
        assert (strategy.params == "cpu") == (type(theirs.cpu_offload).__name__ == "CPUOffloadPolicy")
    else:
        assert strategy.sharding == FSDP1_NAMES[theirs.sharding_strategy.name]
        assert (strategy.params == "cpu") == theirs.cpu_offload.offload_params
        prefetch = theirs.backward_prefetch.name if theirs.backward_prefetch else "NO_PREFETCH"
        assert strategy.options["backward_prefetch"] == prefetch.split("_")[1].lower().replace("prefetch", "none")
        assert strategy.options["use_orig_params"] == theirs.use_orig_params
        assert bool(strategy.options.get("forward_prefetch", 0)) == theirs.forward_prefetch
    assert (strategy.options.get("wrap") == "none") == (theirs.auto_wrap_policy is None)
    assert facts["state_dict_type"] == theirs.state_dict_type.name
    assert (ours.workload.get("checkpointing") == "full") == theirs.activation_checkpointing


@pytest.mark.parametrize("name", [path.name for path in sorted(CONFIGS.glob("*.yaml")) if "sft" not in path.name])
def test_accelerate_loads_the_same_file(name: str) -> None:
    arguments = pytest.importorskip("accelerate.commands.config.config_args")
    if "llamafactory" in name:
        pytest.skip("not a file of accelerate")
    theirs, ours = arguments.load_config_from_file(str(CONFIGS / name)), read_config(CONFIGS / name)
    engine = {"FSDP": ("fsdp1", "fsdp2"), "DEEPSPEED": ("deepspeed",), "MULTI_GPU": ("ddp",), "NO": ("torch",)}
    assert ours.strategy.engine in engine[theirs.distributed_type.value]
    if theirs.distributed_type.value != "NO":
        assert ours.num_processes == theirs.num_processes
    if theirs.mixed_precision:
        assert ours.workload["precision"] == theirs.mixed_precision + "-mixed"
    if theirs.deepspeed_config.get("zero_stage"):
        assert ours.strategy.stage == theirs.deepspeed_config["zero_stage"]


# ------------------------------------------------------------------------------------------------------------- Trainer

TRAINER: list[dict[str, Any]] = [
    {},
    {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 5, "bf16": True, "optim": "adafactor"},
    {"gradient_checkpointing": True, "use_liger_kernel": True, "torch_compile_backend": "inductor"},
    {"activation_checkpointing": False, "gradient_checkpointing": True},
    {"fsdp": True},
    {"fsdp": "full_shard auto_wrap offload"},
    {"fsdp": "shard_grad_op"},
    {"fsdp": "shard_grad_op", "fsdp_config": {"reshard_after_forward": True}},
    {"fsdp": True, "fsdp_config": {"fsdp_offload_params": True, "activation_checkpointing": "true"}},
    {"fsdp": True, "fsdp_config": {"auto_wrap_policy": "NO_WRAP", "cpu_offload": True}},
    {"fsdp": "shard_grad_op", "fsdp_config": {"version": 1, "sync_module_states": False}},
    {"fsdp": True, "fsdp_config": {"version": 1, "backward_prefetch": "backward_pre", "sync_module_states": "false"}},
    {"fsdp": True, "fsdp_config": {"version": 1, "use_orig_params": "false", "sync_module_states": "no"}},
    {"fsdp": "hybrid_shard"},
    {"fsdp": "full_shrd"},
    {"fsdp": True, "fsdp_config": {"auto_wrap_policy": "no_wrap"}},
    {"fsdp": True, "fsdp_config": {"reshard_after_forward": "full_shard"}},
    {"optim": "adamw_torch_fusd"},
]


@pytest.mark.parametrize("keys", TRAINER, ids=range(len(TRAINER)))
def test_trainer_reads_the_same_values(read: Read, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    from accelerate.utils import FullyShardedDataParallelPlugin

    monkeypatch.setenv(RAM, "false")
    data = {"output_dir": "out", "use_cpu": True, "bf16": False, **keys}
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    try:
        (theirs,) = parser.parse_dict(json.loads(json.dumps(data)))
    except ValueError:
        with pytest.raises(InputError):
            read(data)
        return
    ours = read(data)
    fields = ours.workload
    assert fields["micro_batch"] == theirs.per_device_train_batch_size
    assert fields["grad_accum"] == theirs.gradient_accumulation_steps
    assert fields["precision"] == ("bf16-mixed" if theirs.bf16 else "fp32")
    assert fields["optimizer"] == trainer_keys.OPTIMIZERS[str(theirs.optim.value)]
    assert fields.get("compile", False) == theirs.torch_compile
    plugin = FullyShardedDataParallelPlugin(**theirs.fsdp_plugin_args) if theirs.fsdp_plugin_args else None
    recomputes = theirs.activation_checkpointing or bool(plugin and plugin.activation_checkpointing)
    assert fields["checkpointing"] == ("full" if recomputes else "none")
    if plugin is None:
        assert ours.strategy.engine == "ddp"
    else:
        _same_plugin(ours, plugin)


def _same_plugin(ours: Reading, plugin: Any) -> None:
    assert ours.strategy.engine == f"fsdp{plugin.fsdp_version}"
    assert (ours.strategy.options.get("wrap") == "none") == (plugin.auto_wrap_policy is None)
    assert ours.facts["state_dict_type"].value == plugin.state_dict_type.name
    if plugin.fsdp_version == 2:
        assert ours.strategy.sharding == ("full-shard" if plugin.reshard_after_forward else "shard-grad-op")
        assert (ours.strategy.params == "cpu") == (type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy")
    else:
        # accelerator.py: "sharding_strategy": plugin.sharding_strategy or plugin.reshard_after_forward
        used = plugin.sharding_strategy or plugin.reshard_after_forward
        assert ours.strategy.sharding == FSDP1_NAMES[used.name]
        assert ours.strategy.options["use_orig_params"] == plugin.use_orig_params


def test_every_training_argument_is_known(read: Read) -> None:
    import dataclasses

    transformers = pytest.importorskip("transformers")
    names = [field.name for field in dataclasses.fields(transformers.TrainingArguments)]
    reading = read({"output_dir": "out", **{name: None for name in names}})
    assert [item.where for item in reading.ignored if not item.known] == []
    optimizers = {name.value for name in transformers.training_args.OptimizerNames}
    assert optimizers <= {*trainer_keys.OPTIMIZERS, *trainer_keys.OTHER_OPTIMIZERS}
