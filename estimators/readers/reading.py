"""What a configuration says, with the place of each value, and the draft in which a reader collects it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from estimators.errors import IllegalCombination, NotModelled, closest
from estimators.strategy import Strategy, check_legal
from estimators.values import dataclass, field, replace

AUTO = "auto"
KINDS = ("deepspeed", "accelerate", "training_arguments")

# transformers 5.24 integrations/deepspeed.py, trainer_config_finalize; accelerate 1.15 accelerator.py does the same.
_FROM_HIDDEN_SIZE: Mapping[str, Callable[[int], int]] = {
    "reduce_bucket_size": lambda h: h * h,
    "prefetch_bucket_size": lambda h: int(0.9 * h * h),
    "param_persistence_threshold": lambda h: 10 * h,
}


@dataclass(frozen=True, slots=True)
class Value:
    """A value and the key path that gives it. ``given`` is False for a default of the file's own stack."""

    value: Any
    where: str
    line: int | None = None
    given: bool = True


@dataclass(frozen=True, slots=True)
class Ignored:
    """A key that changes no estimate: known and without effect, or unknown (then with close matches)."""

    where: str
    value: Any
    why: str
    line: int | None = None
    known: bool = True
    names: frozenset[str] = field(default=frozenset(), repr=False)  # what an unknown key may have meant

    @property
    def suggestions(self) -> tuple[str, ...]:
        """Known names close to an unknown key, best first; looked for only when asked, for that takes milliseconds."""
        return tuple(closest(self.where.rpartition(" ")[2].rpartition(".")[2], self.names))

    def __str__(self) -> str:
        near = self.suggestions
        return f"{self.where}: {self.why}" + (f"; did you mean {' or '.join(near)}?" if near else "")


@dataclass(frozen=True, slots=True)
class Reading:
    """An existing configuration as ``Strategy`` and fields of ``Workload``.

    ``values`` has one entry for each field and knob (the value ``"auto"`` is left to the Hugging Face stack), ``facts``
    what bears on memory or on other files but is neither, and ``gaps`` why a field or the strategy cannot be estimated.
    """

    kind: str
    path: Path
    strategy: Strategy
    workload: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)
    facts: Mapping[str, Value] = field(default_factory=dict)
    ignored: tuple[Ignored, ...] = ()
    gaps: Mapping[str, str] = field(default_factory=dict)
    num_processes: int | None = None
    num_machines: int | None = None
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    @property
    def auto(self) -> tuple[str, ...]:
        """Fields and knobs that the file leaves to the Hugging Face stack."""
        return tuple(name for name, value in self.values.items() if value.value == AUTO)

    def with_hidden_size(self, hidden_size: int) -> Reading:
        """The buckets that are ``"auto"``, as the Hugging Face stack fills them: h^2, 0.9 h^2 and 10 h elements."""
        filled = {name: rule(hidden_size) for name, rule in _FROM_HIDDEN_SIZE.items() if name in self.auto}
        if not filled:
            return self
        values = {k: replace(v, value=filled[k], given=False) if k in filled else v for k, v in self.values.items()}
        strategy = replace(self.strategy, options={**self.strategy.options, **filled})
        return replace(self, strategy=strategy, values=values)

    def require_modelled(self, overridden: Iterable[str] = ()) -> None:
        """Raise ``NotModelled`` for the first gap in a field that the caller does not override."""
        for name in self.gaps.keys() - set(overridden):
            raise NotModelled(f"{self.path.name}: {self.gaps[name]}")


@dataclass(slots=True)
class Draft:
    """A ``Reading`` in the making: readers put what they find, ``finish`` checks it as a whole."""

    base: str = "ddp"
    optimizer: str | None = None
    params: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    facts: dict[str, Value] = field(default_factory=dict)
    ignored: list[Ignored] = field(default_factory=list)
    gaps: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    num_processes: int | None = None
    num_machines: int | None = None

    def field(self, name: str, value: Value) -> None:
        """A field of the workload; ``"auto"`` is recorded and left open."""
        self.values[name] = value
        if value.value == AUTO:
            self.workload.pop(name, None)
        else:
            self.workload[name] = value.value

    def option(self, name: str, value: Value) -> None:
        """A knob of the strategy; ``"auto"`` is recorded and left open."""
        self.values[name] = value
        if value.value != AUTO:
            self.options[name] = value.value

    def finish(self, kind: str, path: Path) -> Reading:
        """The reading. Raises ``IllegalCombination`` where the engine cannot do what the file says."""
        strategy = Strategy(self.base, dict(self.options), self.optimizer, self.params)
        try:
            check_legal(strategy)
        except IllegalCombination as error:
            place = self.values.get("offload_param") or self.values.get("offload_optimizer")
            line = f", line {place.line}" if place and place.line else ""
            where = f": {place.where}" if place else ""
            raise IllegalCombination(f"{path.name}{line}{where}: {error}") from None
        return Reading(
            kind=kind, path=path, strategy=strategy, workload=self.workload, values=self.values, facts=self.facts,
            ignored=tuple(self.ignored), gaps=self.gaps, num_processes=self.num_processes,
            num_machines=self.num_machines, notes=tuple(dict.fromkeys(self.notes)), files=(path, *self.files),
        )  # fmt: skip
