"""The command that starts a strategy under a stack, without any file but the training script."""

from __future__ import annotations

from estimators.memory import Estimate

HUGGING_FACE = ("trainer", "trl", "accelerate")
# Stacks that start from files of their own: ``selector.configs`` writes them, and says in ``launch.sh`` how they start.
FROM_FILES = ("swift", "llamafactory", "axolotl", "torchtune", "torchtitan")
FOLDER = "run"


def launch(estimate: Estimate, script: str = "train.py") -> str:
    """One line for every node; several nodes need the usual rendezvous arguments besides."""
    run = estimate.run
    cluster, strategy, stack = run.cluster, run.strategy, run.workload.stack
    if stack in FROM_FILES:
        return started(FOLDER, cluster.nodes)
    if strategy.base == "single":
        return f"python {script}"
    if stack not in HUGGING_FACE:  # the deepspeed launcher's own flags differ by version: torchrun starts it as well
        return f"torchrun --nnodes {cluster.nodes} --nproc-per-node {cluster.gpus_per_node} {script}"
    parts = [f"accelerate launch --num_machines {cluster.nodes} --num_processes {cluster.ranks}"]
    precision = run.workload.precision.removesuffix("-mixed")
    parts.append(f"--mixed_precision {precision if precision != 'fp32' else 'no'}")
    if strategy.engine == "deepspeed":
        if strategy.options:  # the launcher has no flag for an engine's knobs
            return " ".join([*parts, "--use_deepspeed --deepspeed_config_file ds_config.json", script])
        parts.append(f"--use_deepspeed --zero_stage {strategy.stage}")
        parts += [
            f"--offload_{what}_device {where}"
            for what, where in (("optimizer", strategy.optimizer), ("param", strategy.params))
            if where
        ]
    elif strategy.engine in ("fsdp1", "fsdp2"):
        parts.append(f"--use_fsdp --fsdp_version {strategy.engine[-1]} --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP")
        parts.append(_sharding(strategy.engine, strategy.sharding))
        if strategy.params:
            parts.append("--fsdp_offload_params true")
    else:
        parts.append("--multi_gpu")
    return " ".join([*filter(None, parts), script])


def started(folder: str, nodes: int) -> str:
    """What starts a folder that ``--emit`` wrote."""
    return f"sbatch {folder}/slurm.sh" if nodes > 1 else f"bash {folder}/launch.sh"


def _sharding(engine: str, sharding: str) -> str:
    if engine == "fsdp1":
        return f"--fsdp_sharding_strategy {sharding.upper().replace('-', '_')}"
    return f"--fsdp_reshard_after_forward {'false' if sharding == 'shard-grad-op' else 'true'}"
