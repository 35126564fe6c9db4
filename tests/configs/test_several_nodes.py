"""The line of an answer for several nodes, as accelerate and torchrun read it, and the folder's ``launch.sh``."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from estimators import estimate
from selector import recommend
from selector.configs import files_of
from selector.launch import launch

pytestmark = pytest.mark.engines
STRATEGIES = ("ddp", "zero3", "zero2+optimizer@cpu", "fsdp-full-shard", "fsdp-hybrid-shard", "fsdp1-hybrid-shard")


def words(line: str, rank: int) -> list[str]:
    """A line as the shell of node ``rank`` passes it on."""
    environment = {**os.environ, "NODE_RANK": str(rank), "MASTER_ADDR": "10.0.0.7"}
    done = subprocess.run(["bash", "-uc", f"printf '%s\\n' {line}"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_accelerate_starts_the_ranks_of_each_node(strategy: str) -> None:
    """What accelerate would hand to torchrun: nodes, ranks of one, which one, and where the first is."""
    command = pytest.importorskip("accelerate.commands.launch")
    utils = pytest.importorskip("accelerate.utils.launch")
    found = estimate("llama-3.2-1b", "3x4xA100-80GB", strategy)
    given = words(launch(found), 2)
    assert given[:2] == ["accelerate", "launch"]
    parsed, _, _ = command._validate_launch_command(command.launch_command_parser().parse_args(given[2:]))
    parsed.deepspeed_fields_from_accelerate_config = ""  # as launch_command does without a configuration file
    made = (
        utils.prepare_deepspeed_cmd_env(parsed) if parsed.use_deepspeed else (None, utils.prepare_multi_gpu_env(parsed))
    )
    assert made[0] is None, "by torchrun, not by a launcher that reaches other nodes itself"
    assert (parsed.nnodes, parsed.nproc_per_node, parsed.node_rank) == ("3", "4", 2)
    assert parsed.rdzv_endpoint == "10.0.0.7:29500"
    environment = made[1]
    if strategy == "fsdp-hybrid-shard":
        assert environment["PARALLELISM_CONFIG_DP_REPLICATE_SIZE"] == "3"
        assert environment["PARALLELISM_CONFIG_DP_SHARD_SIZE"] == "4"


@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp-full-shard"])
def test_torchrun_starts_the_ranks_of_each_node(strategy: str) -> None:
    run = pytest.importorskip("torch.distributed.run")
    given = words(launch(estimate("llama-3.2-1b", "3x4xA100-80GB", strategy, stack="torch")), 1)
    assert given[0] == "torchrun"
    config, _, _ = run.config_from_args(run.get_args_parser().parse_args([*given[1:]]))
    assert (config.min_nodes, config.nproc_per_node) == (3, 4)
    assert config.rdzv_endpoint == "10.0.0.7:29500" and config.rdzv_configs["rank"] == 1


@pytest.mark.parametrize("stack", ["trainer", "torch", "swift", "llamafactory", "axolotl", "torchtune", "torchtitan"])
def test_the_folder_starts_on_each_node_with_slurm_or_without(stack: str, tmp_path: Path) -> None:
    """The launcher is a stand-in that writes down how it was called, through both scripts."""
    strategy = "zero3" if stack in ("swift", "axolotl", "llamafactory") else "fsdp-full-shard"
    more: dict[str, Any] = {"precision": "bf16"} if stack == "torchtune" else {}
    made = files_of(estimate("llama-8b", "3x4xA100-80GB", strategy, stack=stack, **more))
    folder, stand_in = tmp_path / "run", tmp_path / "bin"
    for place in (folder, stand_in, folder / "weights", folder / "model"):
        place.mkdir()
    for name in ("launch.sh", "slurm.sh"):
        (folder / name).write_text(made[name])
        (folder / name).chmod(0o755)
    (folder / "model" / "tokenizer.json").write_text("{}")
    tell = '#!/bin/bash\necho "$(basename "$0") $* | $NNODES $NODE_RANK $MASTER_ADDR $MASTER_PORT" >> "$CALLS"\n'
    tools = {
        name: tell for name in ("accelerate", "torchrun", "swift", "llamafactory-cli", "axolotl", "tune", "python")
    }
    tools["scontrol"] = "#!/bin/bash\nprintf 'node0\\nnode1\\n'\n"
    tools["srun"] = '#!/bin/bash\nfor SLURM_NODEID in 0 1 2; do SLURM_NODEID=$SLURM_NODEID "$@"; done\n'
    for name, text in tools.items():
        (stand_in / name).write_text(text.replace("SLURM_NODEID=$SLURM_NODEID", "env SLURM_NODEID=$SLURM_NODEID"))
        (stand_in / name).chmod(0o755)
    environment = {"PATH": f"{stand_in}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "n[0-2]"}
    calls = {}
    for how in ("alone", "slurm"):
        environment["CALLS"] = str(tmp_path / how)
        lines = ["./slurm.sh"] if how == "slurm" else [f"NODE_RANK={i} MASTER_ADDR=node0 ./launch.sh" for i in range(3)]
        for line in lines:
            done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        calls[how] = [c for c in (tmp_path / how).read_text().splitlines() if not c.startswith("python ")]
    assert calls["alone"] == calls["slurm"] and len(calls["slurm"]) == 3
    for rank, call in enumerate(calls["slurm"]):
        assert call.endswith(f" {rank} node0 29500") and "node0" in call.split("|")[0] + call.split("|")[1]
    missing = subprocess.run(["./launch.sh"], cwd=folder, env=environment, capture_output=True, text=True)
    assert missing.returncode and "NODE_RANK: which node this is, 0 to 2" in missing.stderr


def test_the_first_line_says_where_it_runs() -> None:
    answer = recommend("llama-8b", "2x8xH100")
    said = "run on each of the 2 nodes, with NODE_RANK 0 to 1 and MASTER_ADDR the address of node 0: "
    assert said in answer.headline and answer.headline.endswith(answer.commands["launch"])
    assert "NODE_RANK" not in recommend("llama-8b", "8xH100").headline
    assert shlex.split(answer.commands["launch"])
