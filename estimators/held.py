"""What a run holds at every instant, for every batch and sequence: the engine's moments with the network's formulas.

Everything about a run but its batch and sequence is worked out once: which moments of an instant can be its largest, and
how many bytes each is as a polynomial of the two. An estimate then evaluates a handful of polynomials. ``Held`` keeps
what is needed to name the terms of a moment when somebody reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from estimators.activations.amounts import has_images, rows_of
from estimators.activations.formulas import Formula, between, first_of_equals
from estimators.activations.network import Network, anywhere, modelled
from estimators.activations.question import Question
from estimators.activations.tape import ZERO, Size
from estimators.engines import Candidate, weighed
from estimators.errors import NotModelled
from estimators.host import host_terms
from estimators.result import INSTANTS, Term, sizes_of
from estimators.run import Run
from estimators.runtime import cublas_workspace
from estimators.sites import Site
from estimators.step_temporaries import step_temporaries
from estimators.values import NamedTuple

FEW = 2  # questions that are answered in plain numbers: formulas cost as much as some
MOST_FRAMES = 256  # counts of images and rows of a fused loss that a run is known for


class Held(NamedTuple):
    """One moment without what the network holds: its place, the engine's terms, what stands beside both."""

    site: Site
    terms: tuple[Term, ...]
    beside: tuple[Term, ...]
    elsewhere: Mapping[str, int]  # bytes in host RAM and on NVMe
    host: int


class Choice(NamedTuple):
    """A moment that is the largest of its instant somewhere; its bytes on the GPU, those beside it apart."""

    held: Held
    size: Size
    more: int


Frame = tuple[tuple[str, tuple[Choice, ...]], ...]


class Shared:
    """What runs share that differ only in batch, sequence and images; made by one of them."""

    __slots__ = ("_asked", "_frames", "_images", "question", "reason")

    def __init__(self, run: Run) -> None:
        self._frames: dict[tuple[int, int | None], Frame] = {}
        self._images = False
        self._asked = 0
        self.question: Question | None = None
        self.reason = ""  # why activations are not counted
        try:
            question = modelled(run)
            self._images = has_images(question)
            Network.of(run)
            self.question = question
        except NotModelled as reason:
            self.reason = str(reason)

    @classmethod
    def of(cls, run: Run) -> Shared:
        found = run.shared.get("held")
        if found is None:
            found = run.shared["held"] = cls(run)
        assert isinstance(found, Shared)
        return found

    def _key(self, question: Question | None, run: Run) -> tuple[int, int | None]:
        """What no polynomial says: images of a sample, and rows of a fused loss."""
        asked = run.workload
        rows = None
        if question is not None and question.loss.kind == "fused":
            rows = rows_of(question, asked.micro_batch * asked.seq_len)
        return asked.images if self._images else 1, rows

    def moments(self, run: Run) -> list[tuple[str, int, Held]]:
        """Every instant's name, the bytes on the GPU of its largest moment, and the moment."""
        asked = run.workload
        if self._asked < FEW and self._key(self.question, run) not in self._frames:
            self._asked += 1
            return plain(run, None if self.question is None else Network.of(run))
        batch, seq = asked.micro_batch, asked.seq_len
        return [(name, *largest(choices, batch, seq)) for name, choices in self.frame(run)]

    def frame(self, run: Run) -> Frame:
        """The instants of a run in their order, with the moments that can be the largest of each."""
        key = self._key(self.question, run)
        found = self._frames.get(key)
        if found is None:
            if len(self._frames) >= MOST_FRAMES:
                self._frames.clear()
            network = None if self.question is None else anywhere(self.question, *key)
            found = self._frames[key] = _frame(run, network)
        return found


def plain(run: Run, network: Network | None) -> list[tuple[str, int, Held]]:
    """As ``Shared.moments``, every candidate counted at the batch and sequence of the run."""

    def size(candidate: Candidate) -> int:
        return candidate[2] + (int(network.size(candidate[0])) if network is not None else 0)  # type: ignore[arg-type]

    made = []
    for name, candidates, near in _instants(run):
        found = max(candidates, key=size) if len(candidates) > 1 else candidates[0]
        held, more = _held(run, name, found, near)
        made.append((name, size(found) + more, held))
    return made


def _frame(run: Run, network: Network | None) -> Frame:
    made: list[tuple[str, tuple[Choice, ...]]] = []
    for name, candidates, near in _instants(run):
        choices = []
        for found, size in _possible(candidates, network):
            held, more = _held(run, name, found, near)
            choices.append(Choice(held, size, more))
        made.append((name, tuple(choices)))
    return tuple(made)


def _instants(run: Run) -> Iterator[tuple[str, Sequence[Candidate], tuple[Term, ...]]]:
    """Each instant with the moments that can be its largest, and what stands beside every one of them."""
    candidates, beside = weighed(run), host_terms(run)
    workspace, always = cublas_workspace(run), beside.get("always", ())
    for name in INSTANTS:
        if candidates.get(name):
            near = (*beside.get(name, ()), *(() if name == "load" else (*workspace, *always)))
            yield name, candidates[name], near


def _held(run: Run, name: str, found: Candidate, near: tuple[Term, ...]) -> tuple[Held, int]:
    """A candidate with what stands beside it, and the bytes on the GPU of that."""
    site, terms, _, held = found
    beside = (*step_temporaries(run, terms), *near) if name == "step" else near
    elsewhere = sizes_of(beside, held)
    more = elsewhere.pop("gpu", 0) - held.get("gpu", 0)
    return Held(site, terms, beside, elsewhere, elsewhere.get("host", 0)), more


def _possible(candidates: Sequence[Candidate], network: Network | None) -> list[tuple[Candidate, Size]]:
    """Candidates that are the largest at some batch and sequence, each with its size there; of equals the first."""
    alike: dict[tuple[object, ...], list[tuple[int, Size]]] = {}
    for number, (site, _, size, _) in enumerate(candidates):
        amount = size + network.size(site) if network is not None else size
        sizes: tuple[Size, ...] = amount.sizes if isinstance(amount, Formula) else ((amount, *ZERO[1:]),)
        for turn, one in enumerate(sizes):
            row = alike.setdefault((site.direction, site.part, *site[3:], turn), [])
            while len(row) > 1 and between(row[-1][1], row[-2][1], one):
                row.pop()
            row.append((number, one))
    kept = first_of_equals(sorted(pair for row in alike.values() for pair in row))
    return [(candidates[number], one) for number, one in kept]


def largest(choices: tuple[Choice, ...], batch: int, seq: int) -> tuple[int, Held]:
    """Bytes on the GPU of an instant's largest moment, and the moment; of equals the first."""
    tokens = batch * seq
    squared, squares = tokens * seq, seq * seq
    most, best = -1 << 62, choices[0]
    for choice in choices:
        one, b, s, bs, bss, ss = choice[1]
        size = one + b * batch + s * seq + bs * tokens + bss * squared + ss * squares
        if size > most:
            most, best = size, choice
    return most + best[2], best[0]
