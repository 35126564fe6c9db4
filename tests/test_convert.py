"""Conversions: value by value, accepted by the real parsers, and round trips that keep what both sides can say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from estimators.errors import UnknownName
from estimators.readers import read_config
from selector.cli import main
from selector.convert import convert

CPU = {"device": "cpu"}
GATHER = "stage3_gather_16bit_weights_on_model_save"


def written(folder: Path, data: dict[str, Any], name: str = "ds.json") -> Path:
    file = folder / name
    file.write_text(json.dumps(data), encoding="utf-8")
    return file


def zero(stage: int, **rest: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, **rest},
    }


def fsdp(version: int, **rest: Any) -> dict[str, Any]:
    named = {f"fsdp_{k}": v for k, v in rest.items()}
    block = {"fsdp_version": version, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", **named}
    return {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 16, "num_machines": 2,
            "fsdp_config": block}  # fmt: skip


TABLE = [
    (zero(3), "fsdp", "fsdp-full-shard"),
    (zero(2), "fsdp", "fsdp-shard-grad-op"),
    (zero(1), "fsdp", "fsdp-shard-grad-op"),
    (zero(0), "fsdp1", "fsdp1-no-shard"),
    (zero(3), "fsdp1", "fsdp1-full-shard"),
    (zero(3, zero_hpz_partition_size=8), "fsdp", "fsdp-hybrid-shard:shard=8"),
    (zero(3, offload_optimizer=CPU, offload_param=CPU), "fsdp", "fsdp-full-shard+params@cpu"),
    (zero(2, offload_optimizer=CPU), "fsdp", "fsdp-shard-grad-op+params@cpu"),
    (zero(3), "ddp", "ddp"),
    (fsdp(2), "deepspeed", "zero3"),
    (fsdp(2, reshard_after_forward=False), "deepspeed", "zero2"),
    (fsdp(1, sharding_strategy="SHARD_GRAD_OP"), "deepspeed", "zero2"),
    (fsdp(1, sharding_strategy="NO_SHARD"), "deepspeed", "zero0"),
    (fsdp(1, sharding_strategy="HYBRID_SHARD"), "deepspeed", "zero3"),
    (fsdp(2, offload_params=True), "deepspeed", "zero3+optimizer@cpu+params@cpu"),
    (fsdp(1), "fsdp", "fsdp-full-shard"),
    (fsdp(2), "fsdp1", "fsdp1-full-shard"),
    ({"distributed_type": "MULTI_GPU", "mixed_precision": "bf16", "num_processes": 4}, "deepspeed", "zero0"),
]


@pytest.mark.parametrize(("source", "to", "strategy"), TABLE)
def test_equivalence(source: dict[str, Any], to: str, strategy: str, tmp_path: Path) -> None:
    name = "ds.json" if "zero_optimization" in source else "a.yaml"
    made = convert(written(tmp_path, source, name), to, cluster="2x8xA100-80GB")
    assert made.strategy.name == strategy
    out = tmp_path / f"out.{made.format}"
    out.write_text(made.text, encoding="utf-8")
    assert read_config(out).strategy.base == made.strategy.base


@pytest.mark.parametrize("source", [zero(3, **{GATHER: True}), zero(2), zero(2, offload_optimizer=CPU),
                                    zero(3, offload_optimizer=CPU, offload_param=CPU, **{GATHER: False})])  # fmt: skip
@pytest.mark.parametrize("through", ["fsdp", "fsdp1"])
def test_round_trip(source: dict[str, Any], through: str, tmp_path: Path) -> None:
    first = written(tmp_path, source)
    there = tmp_path / "there.yaml"
    there.write_text(convert(first, through, cluster="8xA100").text, encoding="utf-8")
    back = tmp_path / "back.json"
    back.write_text(convert(there, "deepspeed").text, encoding="utf-8")
    one, two = json.loads(first.read_text()), json.loads(back.read_text())
    assert two["bf16"] == one["bf16"]
    kept = {k: v for k, v in two["zero_optimization"].items() if k != GATHER or k in one["zero_optimization"]}
    assert kept == one["zero_optimization"]


def test_accelerate_round_trip_keeps_machines(tmp_path: Path) -> None:
    source = fsdp(2, state_dict_type="FULL_STATE_DICT") | {"main_process_ip": "10.0.0.1", "machine_rank": 1}
    first = written(tmp_path, source, "a.yaml")
    there, back = tmp_path / "there.yaml", tmp_path / "back.yaml"
    there.write_text(convert(first, "deepspeed", out="there.yaml").text, encoding="utf-8")
    reading = read_config(there)
    assert reading.strategy.base == "zero3" and reading.num_processes == 16 and reading.num_machines == 2
    back.write_text(convert(there, "fsdp").text, encoding="utf-8")
    import yaml

    data = yaml.safe_load(back.read_text())
    assert data["main_process_ip"] == "10.0.0.1" and data["fsdp_config"]["fsdp_state_dict_type"] == "FULL_STATE_DICT"


def test_precision_keeps_its_meaning(tmp_path: Path) -> None:
    pure = zero(2) | {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}
    made = convert(written(tmp_path, pure), "fsdp")
    assert "mixed_precision: 'no'" in made.text
    assert any("16-bit master" in lost.key for lost in made.lost)
    ddp = {"distributed_type": "MULTI_GPU", "mixed_precision": "bf16", "num_processes": 4}
    made = convert(written(tmp_path, ddp, "a.yaml"), "deepspeed")
    assert json.loads(made.text)["communication_data_type"] == "fp32"  # DDP reduces fp32 gradients
    made = convert(written(tmp_path, zero(3) | {"communication_data_type": "fp32"}), "fsdp")
    assert any(lost.key == "gradient reduction" and lost.value == "fp32" for lost in made.lost)


def test_what_is_lost_is_listed(tmp_path: Path) -> None:
    nvme = {"device": "nvme", "nvme_path": "/local_nvme"}
    made = convert(written(tmp_path, zero(3, offload_optimizer=nvme, overlap_comm=True)), "fsdp")
    keys = {lost.key for lost in made.lost}
    assert {"offload to NVMe", "overlap_comm", "micro_batch"} <= keys


def test_memory_before_and_after(tmp_path: Path) -> None:
    made = convert(written(tmp_path, zero(3)), "fsdp", model="llama-8b", cluster="8xA100-80GB")
    assert made.before and made.after and made.before.strategy.startswith("zero3")
    assert made.after.strategy == "fsdp-full-shard" and "LlamaDecoderLayer" in made.text


def test_training_arguments(tmp_path: Path) -> None:
    source = {"output_dir": "o", "bf16": True, "per_device_train_batch_size": 2, "fsdp": True,
              "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}  # fmt: skip
    made = convert(written(tmp_path, source, "args.json"), "deepspeed")
    data = json.loads(made.text)
    assert "fsdp" not in data and data["deepspeed"]["zero_optimization"]["stage"] == 3
    again = convert(written(tmp_path, data, "args2.json"), "fsdp")
    assert json.loads(again.text)["fsdp_config"]["version"] == 2


@pytest.mark.parametrize("to", ["fsdp", "fsdp1", "ddp", "deepspeed"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_arguments_start_what_is_said(stage: int, to: str, tmp_path: Path) -> None:
    """The Trainer starts FSDP1 fully sharded whatever its arguments say: then that is the answer, and the rest is lost."""
    zero_block = {"stage": stage, **({"zero_hpz_partition_size": 8} if stage == 3 else {})}
    source = {"output_dir": "o", "bf16": True, "deepspeed": {"zero_optimization": zero_block}}
    made = convert(written(tmp_path, source, "args.json"), to, cluster="2x8xA100-80GB")
    (tmp_path / "out.json").write_text(made.text, encoding="utf-8")
    assert read_config(tmp_path / "out.json").strategy.base == made.strategy.base
    if to == "fsdp1" or (to == "fsdp" and stage == 3):
        assert any("TrainingArguments start" in lost.why for lost in made.lost)


def test_a_precision_that_the_source_leaves_open_is_named(tmp_path: Path) -> None:
    source = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto"}
    assert "'auto' in the source" in convert(written(tmp_path, source), "fsdp").placeholders["mixed_precision"]


# -------------------------------------------------------------------------------------------------- the real parsers


@pytest.mark.engines
@pytest.mark.parametrize("source", [row[0] for row in TABLE if row[1] == "deepspeed"])
def test_deepspeed_accepts(source: dict[str, Any], tmp_path: Path) -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    data = json.loads(convert(written(tmp_path, source, "a.yaml"), "deepspeed").text)
    filled = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0}
    config.DeepSpeedConfig(data | {k: v for k, v in filled.items() if data.get(k) == "auto"})


@pytest.mark.engines
@pytest.mark.parametrize(("source", "to", "out"), [
    (zero(3, zero_hpz_partition_size=8), "fsdp", "a.yaml"), (zero(3), "fsdp1", "a.yaml"), (zero(2), "ddp", "a.yaml"),
    (zero(3), "deepspeed", "a.yaml"), (fsdp(2), "deepspeed", "a.yaml"),
])  # fmt: skip
def test_several_nodes_start_once_what_is_named_is_filled_in(
    source: dict[str, Any], to: str, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher makes of the file what each node runs; without an address it would wait for a host called None."""
    pytest.importorskip("accelerate")
    import yaml
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import ParallelismConfig, launch

    name = "ds.json" if "zero_optimization" in source else "source.yaml"
    made = convert(written(tmp_path, source, name), to, cluster="2x8xA100", out=out)
    kept = {"main_process_ip"} if "main_process_ip" in source else set()
    assert set(made.placeholders) == {"main_process_ip", "machine_rank"} - kept
    data = yaml.safe_load(made.text) | {"main_process_ip": "10.0.0.7", "machine_rank": 1}
    (tmp_path / out).write_text(yaml.safe_dump(data), encoding="utf-8")
    assert load_config_from_file(str(tmp_path / out)).num_machines == 2
    arguments = launch_command_parser().parse_args(["--config_file", str(tmp_path / out), "x.py"])
    arguments, *_ = _validate_launch_command(arguments)
    deepspeed = data["distributed_type"] == "DEEPSPEED"
    if deepspeed:
        arguments.deepspeed_fields_from_accelerate_config = ",".join(data["deepspeed_config"])  # as launch_command does
        command, environment = launch.prepare_deepspeed_cmd_env(arguments)
        assert command is None  # torchrun on each node, not ssh from one
    else:
        environment = launch.prepare_multi_gpu_env(arguments)
    assert (arguments.nnodes, arguments.nproc_per_node, arguments.node_rank) == ("2", "8", 1)
    assert arguments.rdzv_endpoint == "10.0.0.7:29500"  # same_network of a file never reaches the launcher
    if "parallelism_config" in data:
        for key, value in environment.items():
            if key.startswith("PARALLELISM_CONFIG_"):
                monkeypatch.setenv(key, value)
        mesh = ParallelismConfig()
        assert (mesh.dp_replicate_size, mesh.dp_shard_size) == (2, 8)


def test_an_unknown_number_of_processes_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """accelerate refuses -1 unless --num_processes is given at launch: its own word for it."""
    made = convert(written(tmp_path, zero(3)), "fsdp")
    assert "num_processes: -1" in made.text and set(made.placeholders) == {"num_processes"}
    assert main(["convert", str(tmp_path / "ds.json"), "--to", "fsdp", "--gpus", "2x8xA100"]) == 0
    shown = capsys.readouterr()
    assert "main_process_ip: HEAD_NODE_ADDRESS" in shown.out and "main_process_ip: the address of the" in shown.err
    assert not convert(written(tmp_path, zero(3)), "deepspeed", cluster="2x8xA100").placeholders


@pytest.mark.engines
@pytest.mark.parametrize(("source", "to"), [row[:2] for row in TABLE if row[1] != "deepspeed"])
def test_accelerate_accepts(source: dict[str, Any], to: str, tmp_path: Path) -> None:
    """The launcher reads the file, merges it into its arguments and checks them."""
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    name = "ds.json" if "zero_optimization" in source else "a.yaml"
    out = tmp_path / "out.yaml"
    out.write_text(convert(written(tmp_path, source, name), to, cluster="2x8xA100").text, encoding="utf-8")
    assert load_config_from_file(str(out)).num_processes == 16
    arguments = launch_command_parser().parse_args(["--config_file", str(out), "x.py"])
    arguments, *_ = _validate_launch_command(arguments)
    assert arguments.use_fsdp == (to != "ddp") and arguments.mixed_precision == "bf16"


# ------------------------------------------------------------------------------------------------------- command line


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, zero(3))
    assert main(["convert", str(file), "--to", "fsdp", "--out", str(tmp_path / "f.yaml")]) == 0
    assert "fsdp-full-shard" in capsys.readouterr().err and (tmp_path / "f.yaml").exists()
    assert main(["convert", str(file), "--to", "fsdp", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "dist-advisor/convert/1"
    assert main(["convert", str(file), "--to", "fsdp", "--out", str(file)]) == 2  # never over the original
    with pytest.raises(UnknownName, match="fsdp"):
        convert(file, "fsdp3")
