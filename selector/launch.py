"""The command that starts a strategy under a stack, without any file but the training script.

On several nodes it is one line that runs on every node: each sets NODE_RANK, all the same MASTER_ADDR.
"""

from __future__ import annotations

from estimators.memory import Estimate
from estimators.run import Run

HUGGING_FACE = ("trainer", "trl", "accelerate")
# Stacks that start from files of their own: ``selector.configs`` writes them, and says in ``launch.sh`` how they start.
FROM_FILES = ("swift", "llamafactory", "axolotl", "torchtune", "torchtitan")
FOLDER = "run"
PORT = 29500  # torch's and accelerate's own default
# What a node of several says of itself and of the first, by launcher. ``standard``: accelerate starts DeepSpeed by
# torchrun on each node; its default, pdsh, wants a hostfile and one machine that reaches the others by ssh.
TORCHRUN_NODE = "--node-rank {rank} --master-addr {addr} --master-port {port}"
ACCELERATE_NODE = "--machine_rank {rank} --main_process_ip {addr} --main_process_port {port}"
STANDARD = "--deepspeed_multinode_launcher standard"


def this_node(form: str, rank: str = "$NODE_RANK", addr: str = "$MASTER_ADDR", port: str | int = PORT) -> str:
    """The rendezvous words of one node, in shell text.

    >>> this_node(ACCELERATE_NODE)
    '--machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR --main_process_port 29500'
    """
    return form.format(rank=rank, addr=addr, port=port)


def on_each(nodes: int) -> str:
    """Who runs the line: ``on each of 4 nodes, NODE_RANK 0 to 3 and MASTER_ADDR the address of node 0``."""
    return f"on each of the {nodes} nodes, with NODE_RANK 0 to {nodes - 1} and MASTER_ADDR the address of node 0"


def launch(estimate: Estimate, script: str = "train.py") -> str:
    """One line, the same for every node: see ``on_each``."""
    run = estimate.run
    cluster, strategy, stack = run.cluster, run.strategy, run.workload.stack
    if from_folder(estimate):
        return started(FOLDER, cluster.nodes)
    if strategy.base == "single":
        return f"python {script}"
    if stack not in HUGGING_FACE:  # the deepspeed launcher's own flags differ by version: torchrun starts it as well
        node = f" {this_node(TORCHRUN_NODE)}" if cluster.nodes > 1 else ""
        return f"torchrun --nnodes {cluster.nodes} --nproc-per-node {cluster.gpus_per_node}{node} {script}"
    parts = [f"accelerate launch --num_machines {cluster.nodes} --num_processes {cluster.ranks}"]
    if cluster.nodes > 1:
        parts.append(this_node(ACCELERATE_NODE))
    precision = run.workload.precision.removesuffix("-mixed")
    parts.append(f"--mixed_precision {precision if precision != 'fp32' else 'no'}")
    if strategy.engine == "deepspeed":
        use = f"--use_deepspeed {STANDARD}" if cluster.nodes > 1 else "--use_deepspeed"
        parts.append(f"{use} --zero_stage {strategy.stage}")
        parts += [
            f"--offload_{what}_device {where}"
            for what, where in (("optimizer", strategy.optimizer), ("param", strategy.params))
            if where
        ]
    elif strategy.engine in ("fsdp1", "fsdp2"):
        parts.append(f"--use_fsdp --fsdp_version {strategy.engine[-1]} --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP")
        parts.append(_sharding(strategy.engine, strategy.sharding))
        if strategy.engine == "fsdp2" and strategy.sharding == "hybrid-shard":
            parts.append(_mesh(run))
        if strategy.params:
            parts.append("--fsdp_offload_params true")
    else:
        parts.append("--multi_gpu")
    return " ".join([*filter(None, parts), script])


def from_folder(estimate: Estimate) -> bool:
    """Whether a run starts from files that ``--emit`` writes: launchers have no flag for an engine's knobs."""
    return estimate.run.workload.stack in FROM_FILES or bool(estimate.run.strategy.options)


def started(folder: str, nodes: int) -> str:
    """What starts a folder that ``--emit`` wrote; on several nodes the same on each."""
    node = "NODE_RANK=$NODE_RANK MASTER_ADDR=$MASTER_ADDR " if nodes > 1 else ""
    return f"{node}bash {folder}/launch.sh"


def started_inside(nodes: int) -> str:
    """The same from inside the folder; on several nodes by Slurm."""
    return "sbatch slurm.sh" if nodes > 1 else "./launch.sh"


def mesh(replicas: int, shards: int) -> dict[str, int]:
    """accelerate's sizes for FSDP2's hybrid, replicas x shards: its launcher wants every one."""
    sizes = {"dp_replicate": replicas, "dp_shard": shards, "tp": 1, "cp": 1, "sp": 1}
    return {f"parallelism_config_{name}_size": size for name, size in sizes.items()}


def _mesh(run: Run) -> str:
    flags = (f"--{name} {size}" for name, size in mesh(run.ranks // run.shards, run.shards).items())
    return " ".join(("--use_parallelism_config", *flags))


def _sharding(engine: str, sharding: str) -> str:
    if engine == "fsdp1":
        return f"--fsdp_sharding_strategy {sharding.upper().replace('-', '_')}"
    return f"--fsdp_reshard_after_forward {'false' if sharding == 'shard-grad-op' else 'true'}"
