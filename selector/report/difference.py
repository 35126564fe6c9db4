"""Why one strategy needs more than another: terms set side by side, category by category."""

from __future__ import annotations

from collections.abc import Iterable

from estimators.memory import Estimate
from estimators.result import INSTANTS, Instant, Term
from estimators.units import gib
from estimators.values import dataclass
from selector.report.text import CATEGORY_WORDS


@dataclass(frozen=True, slots=True)
class Line:
    """One term on either side; bytes of B less those of A."""

    category: str
    name: str
    place: str
    a_bytes: int
    b_bytes: int
    formula: str

    @property
    def difference(self) -> int:
        return self.b_bytes - self.a_bytes


def _by_name(terms: Iterable[Term]) -> dict[tuple[str, str, str], list[Term]]:
    found: dict[tuple[str, str, str], list[Term]] = {}
    for term in terms:
        found.setdefault((term.place, term.category, term.name), []).append(term)
    return found


def lines(a: Instant, b: Instant) -> list[Line]:
    """Every term of either instant, largest difference first; terms of the same name and category are one line."""
    left, right = _by_name(a.terms), _by_name(b.terms)
    made = []
    for key in {**left, **right}:
        mine, other = left.get(key, []), right.get(key, [])
        place, category, name = key
        a_bytes, b_bytes = sum(t.bytes for t in mine), sum(t.bytes for t in other)
        formulas = dict.fromkeys(t.formula for t in (*mine, *other))
        made.append(Line(category, name, place, a_bytes, b_bytes, " | ".join(formulas)))
    return sorted(made, key=lambda line: (line.place != "gpu", -abs(line.difference), line.name))


def instants_in_common(a: Estimate, b: Estimate) -> list[str]:
    """Instants that both have, in the order of a run."""
    have = {i.name for i in a.instants} & {i.name for i in b.instants}
    return [name for name in INSTANTS if name in have]


def sentence(a: Estimate, b: Estimate) -> str:
    """The answer in one sentence: which needs more at its peak, and the categories that make the difference."""
    gap = round(b.gpu.expected - a.gpu.expected)
    changes = []
    mine, other = a.peak.by_category(), b.peak.by_category()
    for category in {**mine, **other}:
        change = other.get(category, 0) - mine.get(category, 0)
        if change:
            changes.append((abs(change), f"{CATEGORY_WORDS[category]} {'+' if change > 0 else '-'}{gib(abs(change))}"))
    parts = ", ".join(text for _, text in sorted(changes, reverse=True)[:4])
    if not gap:
        return f"{b.strategy} and {a.strategy} need the same at their peaks ({a.peak.name})" + (
            f": {parts}" if parts else ""
        )
    word = "more" if gap > 0 else "less"
    return (
        f"{b.strategy} needs {gib(abs(gap))} GiB {word} than {a.strategy}: {gib(b.gpu.expected)} at {b.peak.name} "
        f"against {gib(a.gpu.expected)} at {a.peak.name} (GiB: {parts})"
    )
