"""How a run is started: ``launch.sh`` on a node, alone or one of several; ``slurm.sh`` runs it on all of a job."""

from __future__ import annotations

from estimators.run import Run
from estimators.values import dataclass
from selector.configs import environment, shell
from selector.configs.script import SCRIPTED, kind_of
from selector.launch import ACCELERATE_NODE, PORT, TORCHRUN_NODE, this_node

TIME_LIMIT = "24:00:00"
_HEAD = '#!/usr/bin/env bash\nset -euo pipefail\ncd "$(dirname "$0")"\n'
TORCHRUN_RANK, ACCELERATE_RANK = (
    this_node(form, '"$NODE_RANK"', '"$MASTER_ADDR"', '"$MASTER_PORT"') for form in (TORCHRUN_NODE, ACCELERATE_NODE)
)


@dataclass(frozen=True, slots=True)
class Start:
    """``alone``: the words that start one node. ``each``: what every node of several runs; shell text, in which
    MASTER_ADDR, MASTER_PORT and NODE_RANK are set. ``before``: a shell line that comes first. ``resumes``: the
    script takes ``--resume``. ``again``: shell lines that make a requeued job go on, where the stack does not by itself.
    """

    alone: tuple[str, ...]
    each: str
    before: str = ""
    resumes: bool = True
    again: str = ""


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


def with_variables(run: Run, words: tuple[str, ...], before: str, again: str = "", **more: str) -> Start:
    """A command that starts its own ranks from NPROC_PER_NODE, NNODES and NODE_RANK."""
    if run.ranks == 1:
        return Start(words, shell.line(words), before, resumes=False, again=again)
    per_node = {"NPROC_PER_NODE": run.cluster.gpus_per_node, **more}
    alone = ("env", *(f"{name}={value}" for name, value in per_node.items()), *words)
    nodes = f'NNODES={run.cluster.nodes} NODE_RANK="$NODE_RANK"'
    return Start(alone, f"env {nodes} {shell.line(alone[1:])}", before, resumes=False, again=again)


def one_node(run: Run, start: Start) -> str:
    """``launch.sh``: from the run's own folder, with its environment; arguments are passed on."""
    before = f"{start.before}\n" if start.before else ""
    return f'{_HEAD}\n{environment.exports(run)}\n{before}{shell.continued(start.alone)} "$@"\n'


def one_of_several(run: Run, start: Start) -> str:
    """``launch.sh`` where there are several nodes: the same on each, which says which one it is."""
    last = run.cluster.nodes - 1
    lines = [
        f"# on every node: MASTER_ADDR=address-of-node-0 NODE_RANK=0 ./launch.sh, with NODE_RANK up to {last}",
        f': "${{NODE_RANK:?which node this is, 0 to {last}}}"',
        ': "${MASTER_ADDR:?the address of node 0, the same on every node}"',
        f'export NODE_RANK MASTER_ADDR MASTER_PORT="${{MASTER_PORT:-{PORT}}}"',
        environment.exports(run).rstrip(),
        *([start.before] if start.before else []),
        f'{start.each} "$@"',
    ]
    return _HEAD + "\n" + "\n".join(lines) + "\n"


def slurm(run: Run, start: Start) -> str:
    """``slurm.sh`` for ``sbatch``: ``launch.sh`` on each node, which starts a process for each of its GPUs."""
    options = {
        "job-name": f"train-{run.workload.stack}", "nodes": run.cluster.nodes, "ntasks-per-node": 1,
        "gpus-per-node": run.cluster.gpus_per_node, "exclusive": None, "time": TIME_LIMIT, "output": "%x-%j.log",
        "requeue": None,
    }  # fmt: skip
    head = [f"#SBATCH --{name}" + ("" if value is None else f"={value}") for name, value in options.items()]
    words = start.again or ('    set -- "$@" --resume' if start.resumes else "")
    again = [
        "# a job that was requeued goes on from its newest checkpoint",
        f'if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ]; then\n{words}\nfi',
    ]
    body = [
        "set -euo pipefail",
        'cd "${SLURM_SUBMIT_DIR:-.}"  # submit from this folder, on a file system that all nodes share',
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)',
        f"export MASTER_ADDR MASTER_PORT={PORT}",
        *(again if words else []),
        *(["# once, before the nodes look for it", start.before] if start.before else []),
        "# what stands in quotes is expanded on each node",
        "# shellcheck disable=SC2016",
        'srun bash -c \'NODE_RANK=$SLURM_NODEID exec ./launch.sh "$@"\' launcher "$@"',
    ]
    return "\n".join(["#!/usr/bin/env bash", *head, "", *body]) + "\n"


def files(run: Run, start: Start) -> dict[str, str]:
    """One node has no use for Slurm."""
    if run.cluster.nodes == 1:
        return {"launch.sh": one_node(run, start)}
    return {"launch.sh": one_of_several(run, start), "slurm.sh": slurm(run, start)}


def is_scripted(run: Run) -> bool:
    return run.workload.stack in SCRIPTED
