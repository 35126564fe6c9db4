"""Plots as addresses of their own: ``/plot/strategies.svg?model=...`` is a function of the question and nothing else.

The page holds only ``<img>``: a picture is drawn when somebody looks at it, and typing never waits for one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING

from estimators.errors import AdvisorError, MissingDependency, UnknownName
from selector.chinese import CHINESE, said
from selector.plots.style import INSTALL
from selector.ui.answer import about, estimates_of, kindly
from selector.ui.explain import two
from selector.ui.html import Markup, element, join
from selector.ui.link import Values, query
from selector.ui.questions import recommendation
from selector.ui.texts import Words, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from estimators.memory import Estimate

WIDE, NARROW = 9.0, 4.6  # inches; the narrow one is for a phone


def _chosen(values: Values, local: bool) -> Estimate:
    found = recommendation(values, local)
    return found.estimate or estimates_of(found)[0][0]


def _instants(values: Values, local: bool, width: float) -> Figure:
    from selector import plots

    return plots.memory_by_instant(_chosen(values, local), width=width)


def _clock(values: Values, local: bool, width: float) -> Figure:
    from selector import plots

    return plots.step_clock(_chosen(values, local), width=width)


def _strategies(values: Values, local: bool, width: float) -> Figure:
    from selector import plots

    return plots.strategies(estimates_of(recommendation(values, local))[0], width=width)


def _difference(values: Values, local: bool, width: float) -> Figure:
    from selector import plots

    return plots.difference(*two(values, local), width=width)


def _limits(values: Values, local: bool, width: float) -> Figure:
    from selector import plots

    question = recommendation(values, local).question
    strategies = list(dict.fromkeys(e.strategy for e in (_chosen(values, local), *two(values, local))))[:3]
    return plots.limits(question.model, question.cluster, strategies, width=width, **question.fields)


PICTURES: dict[str, Callable[[Values, bool, float], Figure]] = {
    "instants": _instants, "clock": _clock, "strategies": _strategies, "difference": _difference, "limits": _limits,
}  # fmt: skip


def pictures(values: Values, language: str, local: bool) -> str:
    """HTML of the panel. Never raises."""
    return kindly(_pictures, language, values, language, local)


def _pictures(values: Values, language: str, local: bool) -> str:
    if find_spec("matplotlib") is None:
        raise MissingDependency(INSTALL)
    say = words(language)
    shown = [_figure(name, f"{query(values)}&language={language}", say) for name in PICTURES]
    note = "" if _has_words(language) else element("p", say("plots.english"), "quiet")
    return join((about(recommendation(values, local), say), note, *shown))


def _has_words(language: str) -> bool:
    """Whether this machine can draw the words of that language."""
    from selector.plots.chinese import font

    return language != CHINESE or font() is not None


def _figure(name: str, asked: str, say: Words) -> Markup:
    """One plot with its caption; a phone gets the narrow one."""
    address, words_ = escape(f"/plot/{name}.svg?{asked}"), escape(say(f"plot.{name}"))
    return Markup(
        f'<figure data-plot="{name}"><figcaption>{words_}</figcaption><picture>'
        f'<source srcset="{address}&amp;narrow=yes" media="(max-width: 640px)">'
        f'<img src="{address}" alt="{words_}" loading="lazy"></picture></figure>'
    )


@lru_cache(maxsize=64)
def svg(name: str, values: Values, local: bool, narrow: bool, language: str) -> bytes:
    """One picture. Raises the errors of ``estimators.errors``; ``MissingDependency`` without matplotlib."""
    if name not in PICTURES:
        raise UnknownName("picture", name, PICTURES)
    from selector.plots.saving import rendered

    figure = PICTURES[name](values, local, NARROW if narrow else WIDE)
    if language == CHINESE:
        from selector.plots.chinese import in_chinese

        figure = in_chinese(figure)
    return rendered(figure, "svg")


def apology(reason: AdvisorError, language: str) -> bytes:
    """A picture that says in words why there is none."""
    lines: list[str] = [""]
    for word in said(str(reason), language)[:600].split():
        if len(lines[-1]) + len(word) > 60:
            lines.append("")
        lines[-1] += f"{word} "
    told = "".join(f'<tspan x="10" dy="1.4em">{escape(line)}</tspan>' for line in lines)
    height = 30 + 20 * len(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 480 {height}" font-family="sans-serif" font-size="14">'
        f'<text y="4" fill="#57606a">{told}</text></svg>'
    ).encode()
