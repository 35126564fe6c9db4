"""Pieces of HTML. Every text is escaped here, so that nobody's name, file or message can become markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from estimators.memory import Estimate
from estimators.units import GIB, gib
from selector.report.text import CATEGORY_COLOURS, CATEGORY_WORDS, OUTSIDE, VERDICT_WORDS
from selector.ui.texts import Words

Cell = str | tuple[str, str]  # a text, or (text, class); what begins with < was made here


class Markup(str):
    """HTML that is safe to put into a page."""


def text(value: object) -> Markup:
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def flags(value: str) -> Markup:
    """A text in which no line ends inside a flag of a command."""
    return Markup(re.sub(r"(?<=\s)--[\w-]+", r'<span class="unbroken">\g<0></span>', escape(value)))


def element(tag: str, content: object, classes: str = "", **attributes: str) -> Markup:
    named = {"class": classes, **{k.rstrip("_").replace("_", "-"): v for k, v in attributes.items()}}
    written = "".join(f' {name}="{escape(value)}"' for name, value in named.items() if value)
    return Markup(f"<{tag}{written}>{text(content)}</{tag}>")


def join(parts: Iterable[object], between: str = "") -> Markup:
    return Markup(between.join(text(part) for part in parts))


def table(
    titles: Sequence[str], rows: Iterable[Sequence[object]], numeric: Sequence[int] = (), classes: str = ""
) -> Markup:
    """A table that becomes a list of cards on a phone; ``numeric`` columns stand to the right."""
    head = join(element("th", t, "number" if i in numeric else "", scope="col") for i, t in enumerate(titles))
    body = join(
        element(
            "tr",
            join(
                element("td", cell, "number" if i in numeric else "", data_label=titles[i])
                for i, cell in enumerate(row)
            ),
        )
        for row in rows
    )
    made = element("table", join((element("thead", element("tr", head)), element("tbody", body))), f"cards {classes}")
    return element("div", made, "scroll")


def listed(lines: Iterable[object]) -> Markup:
    return element("ul", join(element("li", line) for line in lines))


def folded(title: object, content: object, opened: bool = False, **attributes: str) -> Markup:
    inner = join((element("summary", title), content))
    return Markup(element("details", inner, **attributes).replace("<details", "<details open", 1)) if opened else (
        element("details", inner, **attributes)
    )  # fmt: skip


def badge(verdict: str, say: Words) -> Markup:
    return element("span", say.of(VERDICT_WORDS[verdict]), f"badge {verdict}")


def message(title: str, detail: str, kind: str = "wrong") -> Markup:
    """What is wrong with the input, kindly: what, and what to change."""
    return element("div", join((element("b", title), element("p", detail))), f"message {kind}", role="status")


def category(name: str, say: Words) -> str:
    return say.of(OUTSIDE if name == "outside" else CATEGORY_WORDS.get(name, name))


def strategy(name: str, classes: str = "") -> Markup:
    """A strategy's name, which may break before a plus sign and nowhere else."""
    return element("code", Markup(escape(name).replace("+", "<wbr>+")), classes)


def memory_bar(estimate: Estimate, say: Words, legend: bool = False, most: float = 0.0) -> Markup:
    """One GPU at the peak, stacked by category, with context and communicators; the mark is what the card has.

    The bar is ``most`` bytes long and cut there, so that bars of one table can be compared.
    """
    amounts: dict[str, float] = {**estimate.peak.by_category()}
    outside = sum(o.expected for o in estimate.gpu.runtime)
    total = sum(amounts.values()) + outside
    capacity = estimate.gpu.capacity
    scale = most or max(total, capacity)
    parts, left = [], scale
    for name, size in (*amounts.items(), ("outside", outside)):
        drawn = min(size, left)
        left -= drawn
        if drawn > 0:
            parts.append(_part(drawn / scale, name, f"{category(name, say)} {gib(size)} GiB"))
    mark = element("i", "", "card-line", style=f"left:{100 * capacity / scale:.2f}%")
    label = say("bar.label", used=gib(total, 1), capacity=gib(capacity, 1))
    cut = "bar cut" if total > scale else "bar"
    bar = element("div", join((*parts, mark)), cut, role="img", aria_label=label, title=label)
    return join((bar, _legend(amounts, outside, say))) if legend else bar


def _part(share: float, name: str, title: str) -> Markup:
    style = f"width:{100 * share:.3f}%" + (f";background:{CATEGORY_COLOURS[name]}" if name in CATEGORY_COLOURS else "")
    return element("span", "", "" if name in CATEGORY_COLOURS else name, style=style, title=title)


def _legend(amounts: Mapping[str, float], outside: float, say: Words) -> Markup:
    items = [
        join((element("i", "", "dot", style=f"background:{CATEGORY_COLOURS[n]}"), f"{category(n, say)} {gib(b)}"))
        for n, b in sorted(amounts.items(), key=lambda pair: -pair[1])
        if b >= GIB / 200
    ]
    items.append(join((element("i", "", "dot outside"), f"{say.of(OUTSIDE)} {gib(outside)}")))
    return element("div", join(element("span", item) for item in items), "legend")
