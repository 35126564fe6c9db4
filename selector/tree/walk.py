"""From a situation to a leaf, by way of the questions; what was amended, and what the documents say beside it."""

from __future__ import annotations

from estimators.model.spec import ModelSpec
from estimators.values import dataclass
from selector.tree.data import CONFLICTS, LEAVES, QUESTIONS, REMARKS, ROOT
from selector.tree.nodes import Amendment, Answer, Conflict, Question, Remark, Situation
from selector.tree.policies import POLICIES, check_policy


@dataclass(frozen=True, slots=True)
class Step:
    """One question on the way, as the JSON of the contract has it."""

    id: str
    question: str
    answer: str
    because: str
    source: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What the tree says: the leaf, its strategy, the way to it, and what belongs beside it."""

    policy: str
    leaf: str
    strategy: str
    path: tuple[Step, ...]
    amendments: tuple[Amendment, ...]
    remarks: tuple[Remark, ...]
    conflicts: tuple[Conflict, ...]


def read(situation: Situation, policy: str = "current") -> Reading:
    """Walk the tree. Raises ``UnknownName`` for a policy that does not exist."""
    rules = POLICIES[check_policy(policy)]
    steps: list[Step] = []
    applied: list[Amendment] = []
    node = ROOT
    while node in QUESTIONS:
        step, node = _ask(QUESTIONS[node], situation, rules, applied)
        steps.append(step)
    leaf, strategy = _settle(node, situation, rules, applied)
    return Reading(
        policy, leaf, strategy, tuple(steps), tuple(applied),
        tuple(r for r in REMARKS if r.when(situation, leaf)),
        tuple(c for c in CONFLICTS if c.when(situation, leaf)),
    )  # fmt: skip


def _ask(
    question: Question, situation: Situation, rules: tuple[Amendment, ...], applied: list[Amendment]
) -> tuple[Step, str]:
    """One question answered: the step, and the node that comes next."""
    reply, because = question.reply(situation)
    answer = _chosen(question, reply, situation.billions)
    to, source = answer.to, question.place.source
    for rule in rules:
        if rule.at == question.id and rule.holds(situation):
            applied.append(rule)
            if rule.to:
                to, because, source = rule.to, f"{because}; {rule.today}", f"{source}; {rule.source}"
    return Step(question.id, question.text, answer.id, because, source), to


def _chosen(question: Question, reply: str, billions: float) -> Answer:
    return next(
        a for a in question.answers if a.id == reply and (a.up_to_billions is None or billions <= a.up_to_billions)
    )


def _settle(leaf: str, situation: Situation, rules: tuple[Amendment, ...], applied: list[Amendment]) -> tuple[str, str]:
    """The leaf after amendments that hold there, each at most once, and its strategy."""
    strategy = LEAVES[leaf].strategy
    moved = True
    while moved:
        moved = False
        for rule in rules:
            if rule.at != leaf or rule in applied or not rule.holds(situation):
                continue
            applied.append(rule)
            strategy = rule.strategy or strategy
            if rule.to and rule.to != leaf:
                leaf, moved = rule.to, True
                strategy = LEAVES[leaf].strategy
                break
    if leaf == "ddp" and situation.gpus == 1:
        strategy = "single"
    return leaf, strategy


def size_of(model: ModelSpec) -> tuple[float, str]:
    """Billions as the tree reads a model, and why.

    The nominal size of its name where the catalogue has one, else all parameters (every expert too), rounded.
    """
    if model.nominal_billions is not None:
        return model.nominal_billions, f"{model.name} is a {model.nominal_billions:g}B by its name"
    billions = float(round(model.num_params / 1e9))
    exact = f"{model.num_params / 1e9:.2f}"
    return billions, f"{model.name} has {exact} billion parameters, rounded to {billions:g}B"
