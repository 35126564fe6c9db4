"""Stacked bars as SVG by hand: what reports and notebooks show where matplotlib is not installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from estimators.memory import Estimate
from estimators.result import CATEGORIES
from estimators.units import gib
from estimators.values import dataclass
from selector.report.text import CATEGORY_COLOURS, CATEGORY_WORDS

WIDTH, ROW, LEFT = 400, 40, 4
SLIVER = 0.12  # of the card: smaller bars are drawn without its line
FONT = 'font-family="system-ui,DejaVu Sans,sans-serif"'


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: its name, bytes by category, words to the right."""

    name: str
    amounts: Mapping[str, int]
    words: str


def instants(estimate: Estimate) -> str:
    """Memory of one GPU at each instant, in GiB."""
    rows = [
        Bar(
            i.name + (" (peak)" if i is estimate.peak else ""),
            i.by_category(),
            f"{gib(i.gpu_bytes)} GiB",
        )
        for i in estimate.instants
    ]
    return bars(f"memory of one GPU by instant, {estimate.strategy}", rows, estimate.gpu.capacity, _card(estimate))


def peaks(estimates: Sequence[Estimate]) -> str:
    """The peak of each strategy, in GiB."""
    rows = [Bar(e.strategy, e.peak.by_category(), f"{gib(e.peak.gpu_bytes)} GiB, {e.verdict}") for e in estimates]
    return bars("memory of one GPU at the peak of each strategy", rows, estimates[0].gpu.capacity, _card(estimates[0]))


def _card(estimate: Estimate) -> str:
    return f"{estimate.run.cluster.gpu.label} {gib(estimate.gpu.capacity)} GiB"


def bars(title: str, rows: Sequence[Bar], capacity: int, card: str) -> str:
    """An ``<svg>`` element: a bar a row with its name above, the card's line across, the categories below."""
    highest = max((sum(r.amounts.values()) for r in rows), default=0)
    small = highest < SLIVER * capacity  # slivers beside the card: drawn without its line
    full = 1.05 * (highest if small else max(min(highest, 2.5 * capacity), capacity)) or 1
    room = WIDTH - 2 * LEFT
    at, parts, y = LEFT + capacity / full * room, [], 6
    for row in rows:
        parts.append(_text(LEFT, y + 11, row.name) + _text(WIDTH - LEFT, y + 11, row.words, "end"))
        x = float(LEFT)
        for category in CATEGORIES:
            wide = min(row.amounts.get(category, 0) / full * room, LEFT + room - x)
            if wide > 0:
                parts.append(
                    f'<rect x="{x:.1f}" y="{y + 16}" width="{wide:.2f}" height="16" fill="{CATEGORY_COLOURS[category]}" '
                    f'stroke="#2b2b2b" stroke-width=".5"><title>{CATEGORY_WORDS[category]} '
                    f"{gib(row.amounts[category])} GiB</title></rect>"
                )
                x += wide
        if not small:
            parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y + 14}" y2="{y + 34}" stroke="#b00020" '
                         'stroke-width="2"/>')  # fmt: skip
        y += ROW
    used = [c for c in CATEGORIES if any(r.amounts.get(c) for r in rows)]
    legend, y = _legend(used, f"{card}, right of here" if small else card, y + 8)
    return (
        f'<svg role="img" class="plot" aria-label="{escape(title)}" viewBox="0 0 {WIDTH} {y}" {FONT} font-size="12">'
        + "".join(parts) + legend + "</svg>"
    )  # fmt: skip


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#1a1a1a">{escape(words)}</text>'


def _legend(categories: Sequence[str], card: str, y: int) -> tuple[str, int]:
    """Two columns of names; the line of the card last."""
    found = []
    for at, category in enumerate([*categories, "card"]):
        x, line = LEFT + (at % 2) * WIDTH // 2, y + (at // 2) * 18
        if category == "card":
            found.append(f'<line x1="{x}" x2="{x + 16}" y1="{line + 7}" y2="{line + 7}" stroke="#b00020" '
                         'stroke-width="2"/>' + _text(x + 22, line + 11, card))  # fmt: skip
        else:
            found.append(f'<rect x="{x}" y="{line + 1}" width="16" height="11" fill="{CATEGORY_COLOURS[category]}" '
                         'stroke="#2b2b2b" stroke-width=".5"/>' + _text(x + 22, line + 11, CATEGORY_WORDS[category]))  # fmt: skip
    return "".join(found), y + (len(categories) // 2 + 1) * 18 + 4
