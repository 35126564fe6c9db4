"""The emitted YAML against accelerate: loader, launcher's checks, and the plugins that its variables make."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from runs import name_of, of

from estimators.errors import IllegalCombination
from estimators.run import Run
from selector.configs import accelerate, deepspeed_config
from selector.configs.wrapping import block_classes
from selector.configs.yaml_text import dump

pytestmark = pytest.mark.engines
STACKS = ("trainer", "trl", "accelerate")
NAMES = {"full-shard": "FULL_SHARD", "shard-grad-op": "SHARD_GRAD_OP", "hybrid-shard": "HYBRID_SHARD",
         "no-shard": "NO_SHARD"}  # fmt: skip


def yamls() -> dict[str, Run]:
    """Text -> one run that has it: several methods share a file."""
    found: dict[str, Run] = {}
    for run in of(*STACKS):
        found.setdefault(dump(accelerate.config(run)), run)
    return found


def test_every_yaml_is_loaded_and_passes_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = pytest.importorskip("accelerate.commands.launch")
    loader = pytest.importorskip("accelerate.commands.config.config_args")
    texts = yamls()
    assert len(texts) > 40
    monkeypatch.chdir(tmp_path)
    parser = launch.launch_command_parser()
    for number, (text, run) in enumerate(texts.items()):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text, encoding="utf-8")
        loaded = loader.load_config_from_file(str(path))
        assert loaded.num_processes == run.ranks and loaded.num_machines == run.cluster.nodes, name_of(run)
        before = dict(os.environ)
        arguments = parser.parse_args(["--config_file", str(path), "train.py"])
        checked, defaults, _ = launch._validate_launch_command(arguments)
        if run.strategy.engine == "deepspeed":
            (tmp_path / "ds_config.json").write_text(json.dumps(deepspeed_config(run)))
            checked.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
        environment = _variables(checked)
        os.environ.clear()
        os.environ.update(before)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                if name.startswith(("FSDP_", "ACCELERATE_")):
                    patch.setenv(name, value)
            if run.strategy.engine in ("fsdp1", "fsdp2"):
                _same_plugin(run)
            elif run.strategy.engine == "deepspeed":
                _same_deepspeed(run)


def _variables(arguments: Any) -> dict[str, str]:
    from accelerate.utils import launch

    if arguments.use_deepspeed:
        _, environment = launch.prepare_deepspeed_cmd_env(arguments)
    else:
        environment = launch.prepare_multi_gpu_env(arguments)
    return dict(environment)


def _same_deepspeed(run: Run) -> None:
    """accelerate refuses values that stand in both files; it takes ours."""
    from accelerate.utils import DeepSpeedPlugin

    theirs = DeepSpeedPlugin()
    assert theirs.zero_stage == run.strategy.stage, name_of(run)
    if run.strategy.stage == 3:
        assert theirs.zero3_init_flag == run.settings.knobs["zero_init"]


def _same_plugin(run: Run) -> None:
    from accelerate.utils import FullyShardedDataParallelPlugin

    theirs, knobs = FullyShardedDataParallelPlugin(), run.settings.knobs
    assert f"fsdp{theirs.fsdp_version}" == run.strategy.engine
    assert tuple(theirs.transformer_cls_names_to_wrap) == block_classes(run)
    offloads = type(theirs.cpu_offload).__name__ == "CPUOffloadPolicy" if theirs.fsdp_version == 2 else (
        theirs.cpu_offload.offload_params
    )  # fmt: skip
    assert offloads == bool(run.strategy.params), name_of(run)
    assert theirs.state_dict_type.name == "SHARDED_STATE_DICT"
    assert not theirs.activation_checkpointing and not theirs.cpu_ram_efficient_loading
    if theirs.fsdp_version == 2:
        assert theirs.reshard_after_forward == (run.strategy.sharding != "shard-grad-op")
        return
    assert theirs.sharding_strategy.name == NAMES[run.strategy.sharding]
    prefetch = theirs.backward_prefetch.name if theirs.backward_prefetch else "NO_PREFETCH"
    assert prefetch == accelerate.PREFETCH[str(knobs["backward_prefetch"])]
    assert theirs.use_orig_params == knobs["use_orig_params"]
    assert theirs.forward_prefetch == bool(knobs["forward_prefetch"])


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        ("fsdp-full-shard:reshard_after_forward=2", "true or false, not 2"),
        ("fsdp-full-shard:wrap=blocks", "chooses embedding and head"),
        ("fsdp-full-shard:forward_prefetch=1", "no word for forward_prefetch"),
        ("fsdp1-full-shard:limit_all_gathers=false", "no word for limit_all_gathers"),
        ("fsdp1-full-shard:forward_prefetch=2", "one unit in forward or none"),
        ("fsdp1-hybrid-shard:shard=2", "inside a node"),
        ("fsdp-hybrid-shard:shard=8", "no hybrid"),
    ],
)
def test_what_the_yaml_cannot_say_is_refused(strategy: str, reason: str) -> None:
    from runs import CLUSTER, LLAMA

    from estimators.memory import resolve

    run = resolve(LLAMA, CLUSTER, strategy, stack="accelerate")
    with pytest.raises(IllegalCombination, match=reason):
        accelerate.config(run)
