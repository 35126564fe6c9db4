"""The score of published memory as text: one table for reading in a terminal, one in Markdown."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

HEAD = ("", "quantity", "rows", "groups", "mape", "bias", "p90", "worst")
WORST = 25
COLUMNS = 80


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _line(name: str, quantity: str, score: Mapping[str, Any]) -> tuple[str, ...]:
    return (name, quantity, str(score["n"]), str(score["groups"]),
            *(percent(score[k]) for k in ("mape", "bias", "p90", "worst")))  # fmt: skip


def sections(found: Mapping[str, Any]) -> list[tuple[str, Sequence[Sequence[str]]]]:
    """Title and rows of each table; the first row is its head."""
    overall = [_line("all", q, s) for q, s in found["by_quantity"].items() if s["n"]]
    overall += [_line(f"naive: {name}", "allocated", b["allocated"]) for name, b in found["baselines"].items()]
    overall += [_line(f"naive: {name}", "any", b["all"]) for name, b in found["baselines"].items()]
    split = [
        _line(f"{dimension}: {value}", quantity, score)
        for dimension, values in found["by"].items()
        for value, scores in values.items()
        for quantity, score in scores.items()
        if score["n"]
    ]
    judged = [("", "failures recognised", "runs refused", "tight", "unknown")]
    naive = [(f"naive: {name}", b["verdicts"]) for name, b in found["baselines"].items()]
    for name, v in (("all", found["verdicts"]), *naive):
        judged.append((name, f"{v['failures recognised']} of {v['failures']}", f"{v['runs refused']} of {v['runs']}",
                       str(v["tight"]), str(v["unknown"])))  # fmt: skip
    worst = sorted(found["rows"], key=lambda r: -abs(r["error"]))[:WORST]
    rows = [("row", "group", "quantity", "predicted GiB", "measured GiB", "error")]
    rows += [(r["id"], r["group"], r["quantity"], f"{r['predicted']:.2f}", f"{r['measured']:.2f}", percent(r["error"]))
             for r in worst]  # fmt: skip
    reasons = Counter(s["why"] for s in found["skipped"])
    skipped = [("rows", "why they are not scored"), *((str(n), why) for why, n in reasons.most_common())]
    return [("Errors", [HEAD, *overall]),
            ("By method, strategy and stack", [HEAD, *split]), ("Verdicts", judged),
            ("Largest errors", rows),
            *([(f"Not scored ({len(found['skipped'])} of {found['cases']})", skipped)] if found["skipped"] else [])]  # fmt: skip


def markdown(found: Mapping[str, Any]) -> str:
    parts = []
    for title, rows in sections(found):
        body = [f"| {' | '.join(row)} |" for row in rows]
        body.insert(1, "|" + "---|" * len(rows[0]))
        parts.append(f"### {title}\n\n" + "\n".join(body))
    return "\n\n".join(parts)


def table(found: Mapping[str, Any]) -> str:
    return "\n\n".join("\n".join([title, *_drawn(rows)]) for title, rows in sections(found))


def _drawn(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of at most ``COLUMNS``: what is too wide goes on beneath, in the widest column."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    widest = widths.index(max(widths))
    widths[widest] = min(widths[widest], max(COLUMNS - 2 * (len(widths) - 1) - sum(widths) + widths[widest], 12))
    for row in rows:
        pieces = textwrap.wrap(row[widest], widths[widest]) or [""]
        for number, piece in enumerate(pieces):
            cells = [piece if i == widest else cell if number == 0 else "" for i, cell in enumerate(row)]
            yield "  ".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)).rstrip()


PRINTERS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {"table": table, "markdown": markdown}
