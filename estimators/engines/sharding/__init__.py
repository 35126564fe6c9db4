"""What both FSDP engines are made of: units that are gathered together, their sizes, and the places of a step.

A *unit* is what one wrapped module manages: a transformer block, or what is left for the root. Units follow each other
in forward and come back in reverse; an engine's memory at unit i depends on unit i, its neighbours, and sums over the
units before and behind it. Those sums are linear inside a run of equal blocks, so the extremes of a run lie at its
ends: ``positions`` looks at two pieces at either end and nothing in between, whatever the depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import add, attrgetter
from typing import TypeVar

from estimators.model.spec import ModelSpec, Parameter, Part
from estimators.optimizers import BESIDE, resolved_dtype, states
from estimators.result import Term
from estimators.run import Run
from estimators.sites import END, START, Site
from estimators.values import NamedTuple, dataclass, fields

_Any = TypeVar("_Any")


@dataclass(frozen=True, eq=False, slots=True)
class Unit:
    """Parameters that are gathered and reduced together, ``count`` times in a row.

    ``is_input``: nothing before it in the network is differentiable (an embedding), so its gradients are reduced at
    the very end of backward. ``part``: which run of blocks it is, or START or END of the network.
    """

    name: str
    parameters: tuple[Parameter, ...]
    count: int = 1
    is_input: bool = False
    part: int = START


class Dtypes(NamedTuple):
    """All of a run that the sizes of a unit depend on, besides the unit and the number of shards."""

    param: str
    frozen: str
    compute: str
    reduce: str
    optimizer: str
    impl: str
    state: str | None

    @classmethod
    def of(cls, run: Run) -> Dtypes:
        s = run.settings
        return cls(
            s.param_dtype, s.frozen_dtype, s.compute_dtype, s.reduce_dtype, s.optimizer, s.optimizer_impl,
            run.workload.state_dtype,
        )  # fmt: skip

    def stored(self, parameter: Parameter) -> str:
        """As ``Run.dtype_of``."""
        return parameter.dtype or (self.param if parameter.trainable else self.frozen)

    def states_of(self, parameter: Parameter) -> str:
        return self.state or resolved_dtype(self.optimizer, self.impl, self.stored(parameter))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of one unit on one rank, or a sum of such.

    ``whole`` as loaded, before it is cut; ``shard`` parameters between uses; ``staged`` a copy on the way to the
    device, ``cast`` a copy of those that change dtype, made to be gathered; ``gathered`` the unit whole; ``gradients``
    what autograd computes, ``held`` the same as it is kept over micro-steps without reduction; ``reduce_in`` and
    ``reduce_out`` the ends of a reduce-scatter; ``shard_gradients`` for the optimizer; ``states`` beside the parameters
    and ``host_states`` always in host RAM; ``pinned`` and ``pinned_gradients`` the shards as page-locked memory;
    ``last``, ``last_held`` and ``largest`` gradients of one tensor of a unit, which have no sum.
    """

    whole: int = 0
    shard: int = 0
    staged: int = 0
    cast: int = 0
    gathered: int = 0
    gradients: int = 0
    held: int = 0
    reduce_in: int = 0
    reduce_out: int = 0
    shard_gradients: int = 0
    states: int = 0
    host_states: int = 0
    pinned: int = 0
    pinned_gradients: int = 0
    last: int = 0
    last_held: int = 0
    largest: int = 0

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(*map(add, _values(self), _values(other)))

    def __mul__(self, count: int) -> Sizes:
        return Sizes(*[size * count for size in _values(self)])


_values: Callable[[Sizes], tuple[int, ...]] = attrgetter(*(f.name for f in fields(Sizes)))
NOTHING = Sizes()


@lru_cache(maxsize=1024)
def units(model: ModelSpec, wrap: str, grouped: bool = True) -> tuple[Unit, tuple[Unit, ...]]:
    """The root's own unit, and the others in the order of forward.

    ``wrap``: ``blocks``; ``blocks+embedding`` and ``blocks+embedding+head`` make those modules units too, unless their
    weight is tied (one unit must hold both ends: ``fully_shard`` refuses anything else); ``none``: all is the root's.
    ``grouped``: one unit may hold several modules, so that the final norm joins the head (FSDP2).
    """
    apart = {"blocks+embedding": (model.embedding,), "blocks+embedding+head": (model.embedding, model.head)}.get(
        wrap, ()
    )
    root: list[Parameter] = []
    others: list[Unit] = []
    last_block = max((at for at, part in enumerate(model.parts) if part.is_block), default=0)
    if grouped and "head" in wrap and not model.tied:
        tail = tuple(p for part in model.parts[last_block + 1 :] for p in part.parameters * part.count)
        begin, apart = model.parts[: last_block + 1], (model.embedding,)
    else:
        tail, begin = (), model.parts
    for part in (begin[at] for at in model.executed if at < len(begin)):
        if part.is_block and wrap != "none":
            others.append(
                Unit(part.class_name, part.parameters, part.count, part=len([u for u in others if u.part >= 0]))
            )
            continue
        for parameter in part.parameters * part.count:
            module = parameter.name.rpartition(".")[0]
            if module in apart and module and not model.tied:
                is_input = module == model.embedding
                others.append(Unit(module, (parameter,), is_input=is_input, part=START if is_input else END))
            else:
                root.append(parameter)
    if tail:
        others.append(Unit("tail", tail, part=END))
    return Unit("root", tuple(root)), tuple(others)


@lru_cache(maxsize=1024)
def root_behind(model: ModelSpec, wrap: str, grouped: bool = True) -> tuple[tuple[Parameter, ...], ...]:
    """For each run of blocks the root unit's parameters whose gradients exist when it works backwards.

    Final norm and head come first, then what stands between two runs (a projector), the embedding last; a tied
    embedding is both ends, and counts as first.
    """
    root, others = units(model, wrap, grouped)
    owned, tied = {id(p) for p in root.parameters}, set(model.tied.values())
    ends = [p for part in model.roots for p in part.parameters if p.name in tied and id(p) in owned]
    behind: list[tuple[Parameter, ...]] = []
    for part in reversed(model.in_turn):
        if part.is_block:
            behind.append(tuple(ends) if others else ())
        else:
            ends += [p for p in part.parameters if id(p) in owned and p.name not in tied]
    return tuple(reversed(behind))


def input_has_gradient(run: Run) -> bool:
    """Whether the first block's input is differentiable.

    If not, its post-backward hook finds no gradient to wait for and runs at the end of backward. A trained embedding
    makes it so; with adapters and checkpointing, transformers does (``enable_input_require_grads``).
    """
    if run.workload.has_adapters and run.workload.checkpointing != "none":
        return True
    for part in run.model.parts:
        if part.is_block:
            return False
        if any(p.trainable for p in part.parameters):
            return True
    return False


@dataclass(frozen=True, slots=True)
class Position:
    """A unit among the others: its neighbours in forward order, and sums over those before and behind it."""

    unit: Sizes
    previous: Sizes | None
    following: Sizes | None
    earlier: Sizes
    later: Sizes
    is_input: bool = False
    part: int = START
    index: int = 0

    def of_run(self, listed: Sequence[_Any]) -> _Any | None:
        """Of what is listed by runs of blocks the one of this unit; of the first run for what stands before it, of none
        for what stands behind the last."""
        number = max(self.part, 0)
        return listed[number] if number < len(listed) else None

    def site(self, direction: str, stage: str, gradients: str = "held") -> Site:
        """This unit's place; the head in forward is the loss."""
        at_end = self.part == END and direction == "forward"
        return Site("loss" if at_end else direction, self.part, self.index, stage, gradients)


def positions(runs: Iterable[tuple[Sizes, Unit]]) -> Iterator[Position]:
    """Two places at either end of each run of equal units, in forward order."""
    listed = tuple((size, unit.count, unit) for size, unit in runs)
    later = NOTHING
    for size, count, _ in listed:
        later = later + size * count
    earlier = NOTHING
    for at, (size, count, unit) in enumerate(listed):
        before = listed[at - 1][0] if at else None
        behind = listed[at + 1][0] if at + 1 < len(listed) else None
        for index in sorted({0, 1, count - 2, count - 1} & set(range(count))):
            yield Position(
                size,
                size if index else before,
                size if index < count - 1 else behind,
                earlier + size * index,
                later + size * -(index + 1),
                unit.is_input,
                unit.part,
                index,
            )
        earlier, later = earlier + size * count, later + size * -count


class Amount(NamedTuple):
    """How a named amount of an engine is shown: its category and its formula in words."""

    category: str
    formula: str


Moment = Mapping[str, int]  # name of an amount -> bytes


Placed = tuple[Site, Moment]  # and where in the step it is alive
Moments = Mapping[str, Sequence[tuple[Site, tuple[Term, ...]]]]  # instant -> what may be its largest moment


def plus(*moments: Moment) -> dict[str, int]:
    """Amounts of the same name add up."""
    total: dict[str, int] = {}
    for moment in moments:
        for name, size in moment.items():
            total[name] = total.get(name, 0) + size
    return total


def as_terms(moment: Moment, amounts: Mapping[str, Amount], place: str = "gpu") -> tuple[Term, ...]:
    """Named amounts -> terms, without those of no size."""
    return tuple(
        Term(name, amounts[name].category, size, amounts[name].formula, place) for name, size in moment.items() if size
    )


@lru_cache(maxsize=1024)
def model_buffers(model: ModelSpec) -> int:
    """Bytes of the registered buffers: every rank holds them whole."""
    return sum(part.count * b.bytes for part in model.parts for b in part.buffers)


def state_bytes(parameter: Parameter, shape: tuple[int, ...] | int, dtypes: Dtypes, head: str = "") -> tuple[int, int]:
    """Bytes of a trainable tensor's optimizer states: beside the tensor, and elsewhere (step counters in host RAM)."""
    if not parameter.trainable:
        return 0, 0
    is_head = bool(head) and parameter.name == f"{head}.weight"
    found = states(dtypes.optimizer, shape, dtypes.states_of(parameter), dtypes.impl, parameter.kind, is_head)
    beside = sum(s.bytes for s in found if s.place == BESIDE)
    return beside, sum(s.bytes for s in found) - beside


def per_part(part: Part, size: Callable[[Parameter], int]) -> int:
    """Sum over all pieces of a part."""
    return part.count * sum(size(p) for p in part.parameters)
