"""What an estimate is: instants, each a list of named terms. The peak is the largest instant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from estimators.values import cached_property, dataclass

CATEGORIES = (
    "params", "gradients", "master", "optimizer", "activations", "logits", "buffers", "temporaries", "workspace",
)  # fmt: skip
PLACES = ("gpu", "host", "nvme")
INSTANTS = ("load", "forward", "loss", "backward", "reduce", "step", "save")


@dataclass(frozen=True, slots=True)
class Term:
    """One named amount that is alive at an instant: bytes on one GPU, or per node for host and nvme."""

    name: str
    category: str
    bytes: int
    formula: str
    place: str = "gpu"


@dataclass(frozen=True, slots=True)
class Interval:
    """low <= expected <= high, in bytes unless a name says otherwise."""

    low: float
    expected: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Interval:
        return cls(value, value, value)

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.expected + other.expected, self.high + other.high)


@dataclass(frozen=True)
class Instant:
    """What is alive at one moment of a run."""

    name: str
    terms: tuple[Term, ...]

    def total(self, place: str = "gpu") -> int:
        """Bytes at this moment on one GPU, or on one node's host or NVMe."""
        return sum(t.bytes for t in self.terms if t.place == place)

    @cached_property
    def gpu_bytes(self) -> int:
        return self.total("gpu")

    def by_category(self, place: str = "gpu") -> dict[str, int]:
        """Bytes of each category that occurs."""
        found: dict[str, int] = {}
        for term in self.terms:
            if term.place == place:
                found[term.category] = found.get(term.category, 0) + term.bytes
        return found


class Pending(Instant):
    """An instant whose terms are made when somebody reads them; how many bytes they are is known before."""

    def __init__(
        self, name: str, gpu_bytes: int, elsewhere: Mapping[str, int], make: Callable[[], tuple[Term, ...]]
    ) -> None:
        own = self.__dict__
        own["name"], own["gpu_bytes"], own["_elsewhere"], own["_make"] = name, gpu_bytes, elsewhere, make

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        made: Callable[[], tuple[Term, ...]] = self.__dict__["_make"]
        return made()

    def total(self, place: str = "gpu") -> int:
        own = self.__dict__
        found: int = own["gpu_bytes"] if place == "gpu" else own["_elsewhere"].get(place, 0)
        return found

    def __reduce__(self) -> tuple[type[Instant], tuple[str, tuple[Term, ...]]]:
        return Instant, (self.name, self.terms)


def sizes_of(terms: Iterable[Term], beside: Mapping[str, int] | None = None) -> dict[str, int]:
    """Bytes at each place; ``beside``: what is there already."""
    found = dict(beside or {})
    for term in terms:
        found[term.place] = found.get(term.place, 0) + term.bytes
    return found


def merged(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Drop terms of no size; the order stays."""
    return tuple(t for t in terms if t.bytes)
