"""Two strategies side by side, term by term: why one needs more than the other."""

from __future__ import annotations

from estimators.memory import Estimate, estimate
from estimators.units import gib, readable
from selector.report.difference import Line, instants_in_common, lines
from selector.report.terms import PLACE_WORDS
from selector.ui.answer import about, estimates_of, kindly
from selector.ui.html import Markup, category, element, folded, join, table
from selector.ui.link import Values
from selector.ui.questions import read, recommendation
from selector.ui.texts import Words, words


def explain(values: Values, language: str, local: bool) -> str:
    """HTML of the panel. Never raises. What was not chosen is the answer, and the strategy nearest to it in memory."""
    return kindly(_explain, language, values, language, local)


def two(values: Values, local: bool) -> tuple[Estimate, Estimate]:
    """The two estimates that are compared. Raises the errors of ``estimators.errors``."""
    found = recommendation(values, local)
    given = read(values)
    usual, _ = estimates_of(found)
    names = [given.get("a") or found.strategy or usual[0].strategy]
    rest = [e.strategy for e in usual if e.strategy != names[0]]
    names.append(given.get("b") or (rest[0] if rest else names[0]))
    question = found.question
    a, b = (estimate(question.model, question.cluster, name, **question.fields) for name in names)
    return a, b


def _explain(values: Values, language: str, local: bool) -> str:
    say = words(language)
    a, b = two(values, local)
    parts: list[object] = [about(recommendation(values, local), say), _answer(a, b, say)]
    largest = {a.peak.name, b.peak.name}
    parts += [_instant(a, b, name, language, name in largest) for name in instants_in_common(a, b)]
    return join(parts)


def _answer(a: Estimate, b: Estimate, say: Words) -> Markup:
    """The sentence of ``explain``, in the page's language."""
    gap = round(b.gpu.expected - a.gpu.expected)
    told = say(
        "explain.more" if gap > 0 else "explain.less" if gap < 0 else "explain.same",
        a=a.strategy, b=b.strategy, gap=gib(abs(gap)), a_gib=gib(a.gpu.expected), b_gib=gib(b.gpu.expected),
        a_peak=say.of(a.peak.name), b_peak=say.of(b.peak.name),
    )  # fmt: skip
    return element("p", told, "headline")


def _instant(a: Estimate, b: Estimate, name: str, language: str, opened: bool) -> Markup:
    say = words(language)

    def row(line: Line) -> tuple[object, ...]:
        gap = line.difference
        sign = "+" if gap > 0 else "−" if gap < 0 else ""
        where = "" if line.place == "gpu" else f" ({say.of(PLACE_WORDS[line.place])})"
        return (
            join((element("b", say.of(line.name) + where), element("small", " | ".join(map(say.of, line.formula.split(" | ")))))),
            category(line.category, say),
            readable(line.a_bytes), readable(line.b_bytes),
            element("span", sign + readable(abs(gap)) if gap else "–", "more" if gap > 0 else "less" if gap < 0 else ""),
        )  # fmt: skip

    peaks = [say("peak.of", name=e.strategy) for e in (a, b) if e.peak.name == name]
    title = f"{say.of(name)}: {gib(a[name].gpu_bytes)} → {gib(b[name].gpu_bytes)} GiB"
    if peaks:
        title += f" ({', '.join(dict.fromkeys(peaks))})"
    titles = [say("column.term"), say("column.category"), f"A: {a.strategy}", f"B: {b.strategy}", "B − A"]
    return folded(title, table(titles, map(row, lines(a[name], b[name])), (2, 3, 4), "terms"), opened)
