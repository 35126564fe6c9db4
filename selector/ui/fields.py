"""The form: what may be asked, in which order, and as which keyword of ``recommend``. Values are text, as in a link."""

from __future__ import annotations

from estimators.cluster import INTERCONNECTS
from estimators.strategy import DEFAULT_NAMES
from estimators.values import dataclass
from estimators.workload import (
    ATTENTIONS,
    CHECKPOINTINGS,
    LOSSES,
    METHODS,
    OPTIMIZERS,
    PADDINGS,
    PRECISIONS,
    QUANTS,
    STACKS,
    Workload,
)
from selector.question import ALLOWED, GOALS
from selector.tree.nodes import TEAMS
from selector.tree.policies import POLICIES

MAIN, WORKLOAD, CLUSTER, CHOICE, EXPLAIN = GROUPS = ("main", "workload", "cluster", "choice", "explain")
YES = "yes"


@dataclass(frozen=True, slots=True)
class Field:
    """One input. Empty means not given; with ``choices`` the value is one of them, ``several`` with commas.

    ``hint`` is what holds when it is empty, or an example.
    """

    name: str
    group: str
    choices: tuple[str, ...] = ()
    hint: str = ""
    several: bool = False
    open: bool = False  # other values than the choices are legal too


_PLAIN = Workload()
FIELDS = (
    Field("model", MAIN, hint="llama-8b"),
    Field("gpus", MAIN, hint="4xA10, 8xA100-80GB, 2x8xH100"),
    Field("method", MAIN, METHODS, _PLAIN.method),
    Field("seq_len", MAIN, hint=str(_PLAIN.seq_len)),
    Field("micro_batch", MAIN, hint=str(_PLAIN.micro_batch)),
    Field("team", MAIN, TEAMS),
    Field("precision", WORKLOAD, PRECISIONS, _PLAIN.precision),
    Field("optimizer", WORKLOAD, OPTIMIZERS),
    Field("grad_accum", WORKLOAD, hint=str(_PLAIN.grad_accum)),
    Field("checkpointing", WORKLOAD, CHECKPOINTINGS),
    Field("attention", WORKLOAD, ATTENTIONS, _PLAIN.attention),
    Field("loss", WORKLOAD, LOSSES),
    Field("padding", WORKLOAD, PADDINGS, _PLAIN.padding),
    Field("stack", WORKLOAD, STACKS, _PLAIN.stack),
    Field("compile", WORKLOAD, (YES,)),
    Field("lora_rank", WORKLOAD, hint=str(_PLAIN.lora_rank)),
    Field("quant", WORKLOAD, QUANTS, _PLAIN.quant),
    Field("host_memory", CLUSTER, hint="512GB"),
    Field("nvme", CLUSTER, hint="4TB"),
    Field("network", CLUSTER, hint="400"),
    Field("interconnect", CLUSTER, INTERCONNECTS),
    Field("price", CLUSTER, hint="2.5"),
    Field("gpu_memory", CLUSTER, hint="24GB"),
    Field("goal", CHOICE, GOALS, "fastest"),
    Field("policy", CHOICE, tuple(POLICIES), "current"),
    Field("allow", CHOICE, ALLOWED, several=True),
    Field("global_batch", CHOICE, hint="128"),
    Field("deepspeed_experience", CHOICE, (YES,)),
    Field("strategy", CHOICE, DEFAULT_NAMES, open=True),
    Field("a", EXPLAIN, DEFAULT_NAMES, open=True),
    Field("b", EXPLAIN, DEFAULT_NAMES, open=True),
)
NAMES = tuple(field.name for field in FIELDS)
BY_NAME = {field.name: field for field in FIELDS}
FIRST = {"model": "llama-8b", "gpus": "4xA10"}  # what an empty page asks
SWITCHES = tuple(field.name for field in FIELDS if field.choices == (YES,))
MOST_LETTERS = 200  # of one value


def in_group(group: str) -> tuple[Field, ...]:
    return tuple(field for field in FIELDS if field.group == group)
