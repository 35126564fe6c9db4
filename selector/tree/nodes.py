"""What a decision tree is made of. Everything is data; nothing here decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from estimators.stacks.versions import at_least
from estimators.values import dataclass, field
from selector.tree.places import Place

TEAMS = ("pytorch", "deepspeed", "distributed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the tree asks about, and the facts that version-gated amendments look at.

    ``billions`` is the size as the tree reads it, ``size_because`` says where it comes from. ``ddp_fits`` and
    ``zero2_fits`` are verdicts of the estimator: True (``fits``), False, or None where nobody asked.
    """

    billions: float
    size_because: str = ""
    compile: bool = False
    deepspeed_experience: bool = False
    team: str | None = None
    seq_len: int = 2048
    gpus: int = 1
    method: str = "full"
    stack: str = "trainer"
    ddp_fits: bool | None = None
    zero2_fits: bool | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def knows_deepspeed(self) -> bool:
        """``--team deepspeed`` means experience with DeepSpeed and with distributed systems."""
        return self.deepspeed_experience or self.team == "deepspeed"


@dataclass(frozen=True, slots=True)
class Answer:
    """``id`` leads to node ``to``; with ``up_to_billions`` only for models of at most that size."""

    id: str
    text: str
    to: str
    up_to_billions: float | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A node that asks. ``reply`` gives the id of the answer and why."""

    id: str
    text: str
    chinese: str
    place: Place
    answers: tuple[Answer, ...]
    reply: Callable[[Situation], tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A node that answers: an engine, and the strategy that stands for it."""

    id: str
    text: str
    strategy: str
    place: Place


@dataclass(frozen=True, slots=True)
class Remark:
    """Guidance beside the tree, shown where ``when`` holds for the situation and the leaf that was reached."""

    id: str
    about: str
    text: str
    place: Place
    when: Callable[[Situation, str], bool]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two places that say different things, and the rule that decides between them."""

    id: str
    first: Place
    second: Place
    rule: str
    when: Callable[[Situation, str], bool]


@dataclass(frozen=True, slots=True)
class Gate:
    """``package`` at least ``since`` and before ``until``; a package whose version nobody knows passes no gate."""

    package: str
    since: str | None = None
    until: str | None = None

    def holds(self, versions: Mapping[str, str]) -> bool:
        have = versions.get(self.package)
        if have is None:
            return False
        return (self.since is None or at_least(have, self.since)) and (
            self.until is None or not at_least(have, self.until)
        )

    def __str__(self) -> str:
        bounds = [f">={self.since}" if self.since else "", f"<{self.until}" if self.until else ""]
        return self.package + ",".join(filter(None, bounds))


@dataclass(frozen=True, slots=True)
class Amendment:
    """A rule of the documents that has aged: at node ``at``, where the gates and ``when`` hold, go ``to`` instead.

    ``to`` None leaves the way as it is and only corrects the reason; ``strategy`` replaces that of the leaf.
    """

    id: str
    at: str
    aged: Place
    today: str
    source: str
    when: Callable[[Situation], bool]
    to: str | None = None
    strategy: str | None = None
    gates: tuple[Gate, ...] = ()

    def holds(self, situation: Situation) -> bool:
        return self.when(situation) and all(gate.holds(situation.versions) for gate in self.gates)
