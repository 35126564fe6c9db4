"""The answer while typing: what to use, the table of strategies, why, and the way through the tree."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, ParamSpec

from estimators.errors import AdvisorError
from estimators.memory import Estimate, estimate_all
from estimators.units import gib
from estimators.values import dataclass
from estimators.workload import workload
from selector.report.recommendation import sections, settings_text
from selector.report.text import METHOD_WORDS, by_verdict, speed
from selector.report.tree_svg import tree_svg
from selector.ui.html import Markup, badge, element, flags, folded, join, listed, memory_bar, message, strategy, table
from selector.ui.link import Values
from selector.ui.questions import recommendation
from selector.ui.texts import Words, has, words

if TYPE_CHECKING:
    from selector.near import Alternative
    from selector.recommendation import Recommendation

P = ParamSpec("P")
BEYOND = 1.6  # how many times the card the bars of the table show


@dataclass(frozen=True, slots=True)
class Answer:
    """HTML of the three panels that follow every keystroke."""

    summary: str
    strategies: str
    why: str


def kindly(make: Callable[P, str], language: str, *args: P.args, **kwargs: P.kwargs) -> str:
    """What ``make`` returns, or what is wrong as a message: the user's mistake in words, ours without a traceback."""
    say = words(language)
    try:
        return make(*args, **kwargs)
    except AdvisorError as wrong:
        return message(say("wrong"), say.of(str(wrong)))
    except Exception as defect:  # ours: the page stays, the terminal says what it was
        print(f"dist-advisor ui: internal error ({type(defect).__name__}: {defect})", file=sys.stderr)
        return message(say("defect"), say("defect.detail", error=type(defect).__name__), "defect")


def answer(values: Values, language: str, local: bool) -> Answer:
    """The answer for a form. Never raises: what is wrong is said in the summary."""

    found: Recommendation | None = None

    def summary() -> str:
        nonlocal found
        found = recommendation(values, local)
        return _summary(found, language)

    top = kindly(summary, language)
    if found is None:
        empty = element("p", words(language)("no.answer"), "quiet")
        return Answer(top, empty, empty)
    return Answer(top, kindly(_strategies, language, found, language), kindly(_why, language, found, language))


def about(found: Recommendation, say: Words) -> Markup:
    """The question in one line, above every panel."""
    question = found.question
    cluster, model = question.cluster, question.model
    work = found.estimate.run.workload if found.estimate else workload(**question.fields)
    gpus = f"{cluster.nodes} x {cluster.gpus_per_node}" if cluster.nodes > 1 else f"{cluster.gpus_per_node}"
    parts = [
        say("about.model", name=model.name, billions=f"{model.num_params / 1e9:.2f}"),
        f"{gpus} x {cluster.gpu.label} ({gib(cluster.gpu.memory_bytes)} GiB)",
    ]
    parts += [
        say.of(METHOD_WORDS[work.method]), work.precision,
        say("about.tokens", batch=work.micro_batch, tokens=f"{work.seq_len:,}"), say("about.stack", stack=work.stack),
    ]  # fmt: skip
    return element("p", " · ".join(parts), "about")


def _summary(found: Recommendation, language: str) -> str:
    say = words(language)
    estimate = found.estimate
    if estimate is None or found.strategy is None:
        head = element("div", join((element("h2", say("nothing.fits")), badge("no", say))), "choice")
        return element("div", join((about(found, say), head, _alternatives(found, language, opened=True))), "summary")
    head = element("div", join((element("h2", strategy(found.strategy)), badge(estimate.verdict, say))), "choice")
    parts = [about(found, say), head, memory_bar(estimate, say, legend=True), _facts(found, estimate, language)]
    if found.choice is None and found.rejected:
        parts.append(message(say("does.not.fit"), say.of(found.rejected[0].why), "note"))
    if found.commands and found.choice is not None:
        command = element("pre", found.commands["launch"], "command")
        parts.append(folded(say("launch"), command))
    parts.append(_alternatives(found, language))
    return element("div", join(parts), "summary")


def _facts(found: Recommendation, estimate: Estimate, language: str) -> Markup:
    say = words(language)
    instant = say.of(estimate.peak.name)
    facts = [
        (say("fact.gpu"), say("fact.gpu.value", used=gib(estimate.gpu.process.expected, 1),
                              capacity=gib(estimate.gpu.capacity, 1), instant=instant)),
        (say("fact.host"), f"{gib(estimate.host.expected, 0)} GiB"),
    ]  # fmt: skip
    if estimate.nvme_bytes:
        facts.append((say("fact.nvme"), f"{gib(estimate.nvme_bytes, 0)} GiB"))
    if speed(estimate):
        facts.append((say("fact.speed"), f"{speed(estimate):,.0f}"))
    if found.settings:
        facts.append((say("fact.settings"), say.of(settings_text(found.settings))))
    return element(
        "dl", join(element("div", join((element("dt", name), element("dd", value)))) for name, value in facts), "facts"
    )


def _alternatives(found: Recommendation, language: str, opened: bool = False) -> Markup:
    say = words(language)
    if not found.alternatives:
        return Markup("")

    def row(other: Alternative) -> tuple[object, ...]:
        estimate = other.estimate
        return (
            strategy(other.strategy), badge(estimate.verdict, say), gib(estimate.gpu.process.expected, 1),
            gib(estimate.host.expected, 0), say.of(settings_text(other.changes)),
        )  # fmt: skip

    titles = [say(f"column.{name}") for name in ("strategy", "verdict", "gpu", "host", "with")]
    title = say("alternatives" if found.choice else "what.would.work")
    return folded(title, table(titles, map(row, found.alternatives), (2, 3)), opened)


def estimates_of(found: Recommendation) -> tuple[list[Estimate], dict[str, str]]:
    """Every usual strategy for the question, what fits first."""
    question = found.question
    made, left_out = _all(question.model, question.cluster, tuple(sorted(question.fields.items())))
    return by_verdict(made), left_out


@lru_cache(maxsize=64)
def _all(
    model: object, cluster: object, fields: tuple[tuple[str, object], ...]
) -> tuple[list[Estimate], dict[str, str]]:
    return estimate_all(model, cluster, None, **dict(fields))  # type: ignore[arg-type]


def _strategies(found: Recommendation, language: str) -> str:
    say = words(language)
    estimates, left_out = estimates_of(found)
    capacity = found.question.cluster.gpu.memory_bytes
    most = capacity * (BEYOND if any(e.gpu.expected > capacity for e in estimates) else 1)
    settings = settings_text(found.settings) if found.estimate else ""
    if found.estimate:  # with its settings; as it was asked it stands below, where that differs
        same = (found.estimate.strategy, found.estimate.run.workload)
        estimates = [found.estimate, *(e for e in estimates if (e.strategy, e.run.workload) != same)]

    def row(estimate: Estimate) -> tuple[object, ...]:
        chosen = estimate is found.estimate
        name = strategy(estimate.strategy, "chosen" if chosen else "")
        if chosen and settings:
            name = join((name, element("small", say.of(settings))))
        return (
            name, badge(estimate.verdict, say), gib(estimate.gpu.expected), memory_bar(estimate, say, most=most),
            gib(estimate.host.expected, 0), say.of(estimate.peak.name),
            f"{speed(estimate):,.0f}" if speed(estimate) else "–",
        )  # fmt: skip

    titles = [say(f"column.{name}") for name in ("strategy", "verdict", "tensors", "bar", "host", "peak", "speed")]
    parts: list[object] = [table(titles, map(row, estimates), (2, 4, 6), "strategies")]
    caption = say("strategies.caption") + (" " + say("strategies.first") if settings else "")
    parts.append(element("p", caption, "quiet"))
    told = list(dict.fromkeys(note for e in estimates for note in e.notes))
    notes = [*(f"{name}: {say.of(why)}" for name, why in left_out.items()), *map(say.of, told)]
    if not say.knows((*left_out.values(), *told)):
        parts.append(element("p", say("english.reasons"), "quiet"))
    if notes:
        parts.append(folded(say("notes"), listed(notes)))
    return join(parts)


def _why(found: Recommendation, language: str) -> str:
    say = words(language)
    picture = tree_svg(found.reading, lambda t: say(f"tree.{t}") if has(f"tree.{t}") else t, language == "zh")
    parts: list[object] = []
    written = dict(sections(found))
    lines = [
        found.headline,
        *(line for several in written.values() for line in several),
        *(r.why for r in found.rejected),
    ]
    if not say.knows(lines):
        parts.append(element("p", say("english.reasons"), "quiet"))
    sides = [element("div", Markup(picture), "picture")]
    told = [element("p", flags(say.of(found.headline)), "headline")]
    for number, (title, lines) in enumerate(written.items()):
        told.append(
            folded(
                say(f"section.{title}") if has(f"section.{title}") else title,
                listed(say.of(line) for line in lines),
                number in (0, 2),
            )
        )
    by_reason: dict[str, list[str]] = {}
    for out in found.rejected:
        by_reason.setdefault(say.of(out.why), []).append(out.strategy)
    if by_reason:
        titles = [say("column.strategy"), say("column.why")]
        rows = [(join((strategy(n) for n in names), ", "), why) for why, names in by_reason.items()]
        told.append(folded(say("rejected"), table(titles, rows)))
    sides.append(element("div", join(told)))
    parts.append(element("div", join(sides), "sides"))
    return join(parts)
