"""A recommendation for a notebook: plain HTML with the picture, no script or external file; every text is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from estimators.units import gib
from selector.report.pictures import PAGE, memory
from selector.report.recommendation import rows, sections

if TYPE_CHECKING:
    from selector.recommendation import Recommendation

COLOURS = {"fits": "#1a7f37", "tight": "#9a6700", "unknown": "#0969da", "no": "#cf222e"}


def html(answer: Recommendation) -> str:
    """The sentence, memory by instant, a table of choice, alternatives and rejected strategies, and the rest to unfold."""
    parts = [f"<p><b>{escape(answer.headline)}</b></p>"]
    if answer.estimate is not None:
        parts.append(f"<div style='max-width:48rem'>{memory(answer.estimate, PAGE)}</div>")
    parts.append(_table(rows(answer)))
    for number, (title, lines) in enumerate(sections(answer)):
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        opened = " open" if number == 0 else ""
        parts.append(f"<details{opened}><summary>{escape(title)}</summary><ul>{items}</ul></details>")
    return "<div>" + "".join(parts) + "</div>"


def _table(found: list[dict[str, Any]]) -> str:
    titles = ("", "strategy", "verdict", "GPU GiB", "with", "why")
    head = "".join(f"<th style='text-align:left'>{title}</th>" for title in titles)
    lines = []
    for row in found:
        verdict = row["verdict"] or ""
        used = "" if row["gpu_process_bytes"] is None else f"{gib(row['gpu_process_bytes'], 1)}"
        why = "" if row["role"] == "choice" else row["why"]
        cells = [row["role"], row["strategy"], verdict, used, row["changes"], why]
        colour = COLOURS.get(verdict, "inherit")
        styled = "".join(
            f"<td style='text-align:left;color:{colour}'>{escape(str(c))}</td>" if index == 2 else
            f"<td style='text-align:left'>{escape(str(c))}</td>"
            for index, c in enumerate(cells)
        )  # fmt: skip
        lines.append(f"<tr>{styled}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
