"""How a run is started: ``launch.sh`` for one node, ``slurm.sh`` for several."""

from __future__ import annotations

from estimators.run import Run
from estimators.values import dataclass
from selector.configs import environment, shell
from selector.configs.script import SCRIPTED, kind_of

PORT = 29500
TIME_LIMIT = "24:00:00"
_HEAD = '#!/usr/bin/env bash\nset -euo pipefail\ncd "$(dirname "$0")"\n'
TORCHRUN_RANK = '--node-rank "$SLURM_NODEID" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'
ACCELERATE_RANK = '--machine_rank "$SLURM_NODEID" --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT"'


@dataclass(frozen=True, slots=True)
class Start:
    """``alone``: the words that start one node. ``each``: what every node of several runs; shell text, in which
    MASTER_ADDR, MASTER_PORT and SLURM_NODEID are set. ``before``: a shell line that comes first. ``resumes``: the
    script takes ``--resume``.
    """

    alone: tuple[str, ...]
    each: str
    before: str = ""
    resumes: bool = True


def start_of(run: Run) -> Start:
    """Of the stacks that have a train.py."""
    per_node = str(run.cluster.gpus_per_node)
    if run.strategy.base == "single":
        return Start(("python", "train.py"), "python train.py")
    if kind_of(run) in ("trainer", "accelerate"):
        return accelerate_start(("train.py",))
    each = f"{torchrun(run)} train.py"
    if run.workload.stack == "deepspeed" and run.strategy.engine == "deepspeed":
        return Start(("deepspeed", "--no_local_rank", "--num_gpus", per_node, "train.py"), each)
    return Start(("torchrun", "--standalone", "--nproc-per-node", per_node, "train.py"), each)


def torchrun(run: Run) -> str:
    """What each node of several runs, without the script."""
    nodes, per_node = run.cluster.nodes, run.cluster.gpus_per_node
    return f"torchrun --nnodes {nodes} --nproc-per-node {per_node} {TORCHRUN_RANK}"


def accelerate_start(script: tuple[str, ...], before: str = "", resumes: bool = True) -> Start:
    """``accelerate launch`` with the configuration beside it."""
    words = ("accelerate", "launch", "--config_file", "accelerate.yaml")
    return Start((*words, *script), f"{shell.line(words)} {ACCELERATE_RANK} {shell.line(script)}", before, resumes)


def with_variables(run: Run, words: tuple[str, ...], before: str, **more: str) -> Start:
    """A command that starts its own ranks from NPROC_PER_NODE, NNODES and NODE_RANK."""
    if run.ranks == 1:
        return Start(words, shell.line(words), before, resumes=False)
    per_node = {"NPROC_PER_NODE": run.cluster.gpus_per_node, **more}
    alone = ("env", *(f"{name}={value}" for name, value in per_node.items()), *words)
    nodes = f'NNODES={run.cluster.nodes} NODE_RANK="$SLURM_NODEID"'
    return Start(alone, f"env {nodes} {shell.line(alone[1:])}", before, resumes=False)


def one_node(run: Run, start: Start) -> str:
    """``launch.sh``: from the run's own folder, with its environment; arguments are passed on."""
    before = f"{start.before}\n" if start.before else ""
    return f'{_HEAD}\n{environment.exports(run)}\n{before}{shell.continued(start.alone)} "$@"\n'


def slurm(run: Run, start: Start) -> str:
    """``slurm.sh`` for ``sbatch``: a launcher on each node, which starts a process for each of its GPUs."""
    options = {
        "job-name": f"train-{run.workload.stack}", "nodes": run.cluster.nodes, "ntasks-per-node": 1,
        "gpus-per-node": run.cluster.gpus_per_node, "exclusive": None, "time": TIME_LIMIT, "output": "%x-%j.log",
        "requeue": None,
    }  # fmt: skip
    head = [f"#SBATCH --{name}" + ("" if value is None else f"={value}") for name, value in options.items()]
    again = [
        "# a job that was requeued goes on from its newest checkpoint",
        'if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then set -- "$@" --resume; fi',
    ]
    body = [
        "set -euo pipefail",
        'cd "${SLURM_SUBMIT_DIR:-.}"  # submit from this folder, on a file system that all nodes share',
        environment.exports(run).rstrip(),
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"export MASTER_ADDR MASTER_PORT={PORT}",
        *(again if start.resumes else []),
        *([start.before] if start.before else []),
        "# what stands in quotes is expanded on each node",
        "# shellcheck disable=SC2016",
        f'srun bash -c \'{start.each} "$@"\' launcher "$@"',
    ]
    return "\n".join(["#!/usr/bin/env bash", *head, "", *body]) + "\n"


def files(run: Run, start: Start) -> dict[str, str]:
    """One node has no use for Slurm, and ``launch.sh`` alone does not start several."""
    return {"slurm.sh": slurm(run, start)} if run.cluster.nodes > 1 else {"launch.sh": one_node(run, start)}


def is_scripted(run: Run) -> bool:
    return run.workload.stack in SCRIPTED
