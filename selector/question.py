"""What ``recommend`` is asked, resolved once: which values are the user's, and which are free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from estimators.cluster import Cluster, parse_cluster
from estimators.errors import IllegalCombination, InputError, UnknownName, short
from estimators.model import resolve_model
from estimators.model.positions import default_length
from estimators.model.spec import ModelSpec
from estimators.strategy import Strategy, parse_strategy
from estimators.values import dataclass, field, replace
from estimators.workload import FIELD_ALIASES, whole_number, workload
from selector.tree.nodes import TEAMS
from selector.tree.policies import check_policy

GOALS = ("fastest", "simplest", "documents")
ALLOWED = ("lora", "qlora")
ONE_DTYPE = {"torchtune": "bf16"}  # stacks without mixed precision, and what they train in
MAX_GLOBAL_BATCH = 2**24
FACTS = {
    "host_memory": "host_bytes", "nvme": "nvme_bytes", "network": "network_bits_per_s", "interconnect": "interconnect",
    "price": "price_per_gpu_hour", "gpu_memory": "gpu", "tflops": "tflops", "bandwidth": "bandwidth_gb_per_s",
    "cpu_cores": "cpu_cores", "host_bandwidth": "dram_bytes_per_s",
    "calibration": "calibration",
}  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class Question:
    """``fields`` are the workload values that the user gave; everything that is not in it is free."""

    model: ModelSpec
    cluster: Cluster
    fields: Mapping[str, Any] = field(default_factory=dict)
    team: str | None = None
    deepspeed_experience: bool = False
    policy: str = "current"
    goal: str = "fastest"
    allow: tuple[str, ...] = ()
    global_batch: int | None = None
    strategy: Strategy | None = None
    notes: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods that may be answered, the preferred one first."""
        given = self.fields.get("method")
        return (given,) if given else ("full", *self.allow)

    @property
    def compile(self) -> bool:
        return bool(self.fields.get("compile", False))

    @property
    def seq_len(self) -> int:
        return int(workload(**self.fields).seq_len)

    @property
    def batches(self) -> tuple[tuple[int, int], ...]:
        """(micro-batch, accumulation) that keep the global batch, the smallest micro-batch first."""
        micro, steps = self.fields.get("micro_batch"), self.fields.get("grad_accum")
        if self.global_batch is None:
            return ((int(micro or 1), int(steps or 1)),)
        share, rest = divmod(self.global_batch, self.cluster.ranks)
        if rest:
            raise IllegalCombination(
                f"global batch {self.global_batch} does not divide over {self.cluster.ranks} GPUs; "
                f"give {_nearest(self.global_batch, self.cluster.ranks)}"
            )
        found = tuple(
            (m, share // m)
            for m in divisors(share)
            if (micro is None or m == int(micro)) and (steps is None or share // m == int(steps))
        )
        if not found:
            raise IllegalCombination(
                f"global batch {self.global_batch} is {share} sequences per GPU, which micro-batch {micro or 'any'} x "
                f"accumulation {steps or 'any'} do not make; leave one of them out"
            )
        return found

    def changed(self, **changes: Any) -> Question:
        """The same question with other values; ``fields`` are merged, the rest replaced."""
        own = {k: changes.pop(k) for k in list(changes) if k in self.__dataclass_fields__}
        return replace(self, **{"fields": {**self.fields, **changes}, **own})


def _nearest(value: int, step: int) -> str:
    below = value // step * step
    return f"{below + step}" if not below else f"{below} or {below + step}"


def divisors(number: int) -> list[int]:
    """All divisors, ascending: ``divisors(12) == [1, 2, 3, 4, 6, 12]``."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def ask(
    model: object,
    cluster: str | Cluster,
    *,
    team: str | None = None,
    deepspeed_experience: bool = False,
    compile: bool = False,
    policy: str = "current",
    goal: str = "fastest",
    allow: Iterable[str] | str = (),
    global_batch: int | None = None,
    strategy: str | Strategy | None = None,
    **fields: Any,
) -> Question:
    """Check everything that a caller passes. Raises the errors of ``estimators.errors``."""
    if team is not None and team not in TEAMS:
        raise UnknownName("team", str(team), TEAMS, f"(one of {', '.join(TEAMS)})")
    if goal not in GOALS:
        raise UnknownName("goal", str(goal), GOALS, f"(one of {', '.join(GOALS)})")
    if not isinstance(deepspeed_experience, bool):
        raise InputError(f"deepspeed_experience {short(deepspeed_experience)} is not true or false")
    facts = {name: fields.pop(name) for name in FACTS if name in fields}
    given = {FIELD_ALIASES.get(k, k): v for k, v in fields.items() if v is not None}
    if compile:
        given["compile"] = compile
    asked = workload(**fields, compile=compile or None)  # refuses what is wrong
    given = {name: getattr(asked, name) for name in given}
    where = parse_cluster(cluster, **facts) if isinstance(cluster, str) else with_facts(cluster, facts)
    spec = resolve_model(model)
    notes: tuple[str, ...] = ()
    if (length := default_length(spec, given)) is not None:
        given["seq_len"] = length
        notes = (f"{spec.name} has {length:,} positions: sequences of {length:,} tokens, not the usual 2,048",)
    question = Question(
        model=spec, notes=notes, cluster=where, fields=given, team=team,
        deepspeed_experience=deepspeed_experience, policy=check_policy(policy), goal=goal,
        allow=_allowed(allow), strategy=parse_strategy(strategy) if isinstance(strategy, str) else strategy,
        global_batch=None if global_batch is None else whole_number("global_batch", global_batch, MAX_GLOBAL_BATCH),
    )  # fmt: skip
    question.batches  # noqa: B018 - refuses a global batch that cannot be made
    return _with_precision(question)


def with_facts(cluster: Cluster, facts: Mapping[str, Any]) -> Cluster:
    """A cluster with other facts: host RAM, NVMe, network, links, price."""
    stated = {k: v for k, v in facts.items() if v is not None}
    if not stated:
        return cluster
    read = parse_cluster("T4", **stated)  # any card: only what was stated is taken
    changes: dict[str, Any] = {FACTS[name]: getattr(read, FACTS[name]) for name in stated if name != "gpu_memory"}
    if "gpu_memory" in stated:
        changes["gpu"] = replace(cluster.gpu, memory_bytes=read.gpu.memory_bytes)
    return replace(cluster, **changes)


def _allowed(allow: Iterable[str] | str) -> tuple[str, ...]:
    words = allow.split(",") if isinstance(allow, str) else list(allow)
    names = [str(w).strip().lower() for w in words if str(w).strip()]
    for name in names:
        if name not in ALLOWED:
            raise UnknownName("method to allow", name, ALLOWED, f"(one of {', '.join(ALLOWED)})")
    return tuple(name for name in ALLOWED if name in names)


def _with_precision(question: Question) -> Question:
    """What the card or the stack can do, where nobody asked for a precision."""
    gpu, stack = question.cluster.gpu, str(question.fields.get("stack", ""))
    if stack in ONE_DTYPE and "precision" not in question.fields:
        note = (
            f"stack {stack} has one dtype throughout: precision {ONE_DTYPE[stack]} in place of the default bf16-mixed"
        )
        question = question.changed(precision=ONE_DTYPE[stack], notes=(*question.notes, note))
    if gpu.bf16 is not False or "precision" in question.fields:
        return question
    note = f"{gpu.label} has no bf16: precision fp16-mixed in place of the default bf16-mixed"
    return question.changed(precision="fp16-mixed", notes=(*question.notes, note))
