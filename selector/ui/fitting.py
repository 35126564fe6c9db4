"""What fits: a row a strategy as soon as it is known, so that nobody waits for the last one."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from estimators.errors import AdvisorError
from estimators.memory import default_strategies
from estimators.strategy import parse_strategy
from selector.fit import Fit, fit_one
from selector.ui.answer import about
from selector.ui.html import element, folded, join, listed, message, table
from selector.ui.html import strategy as strategy_name
from selector.ui.link import Values
from selector.ui.questions import read, recommendation
from selector.ui.texts import words


def fitting(values: Values, language: str, local: bool) -> Iterator[str]:
    """HTML of the panel, again and again with one row more. Never raises."""
    say = words(language)
    try:
        yield from _fitting(values, language, local)
    except AdvisorError as wrong:
        yield message(say("wrong"), say.of(str(wrong)))
    except Exception as defect:
        print(f"dist-advisor ui: internal error ({type(defect).__name__}: {defect})", file=sys.stderr)
        yield message(say("defect"), say("defect.detail", error=type(defect).__name__), "defect")


def _fitting(values: Values, language: str, local: bool) -> Iterator[str]:
    say = words(language)
    found = recommendation(values, local)
    question = found.question
    given = read(values)
    names = [given["strategy"]] if "strategy" in given else default_strategies(question.cluster)
    rows: list[Fit] = []
    left_out: list[str] = []
    for at, name in enumerate(names):
        yield _shown(about(found, say), rows, left_out, language, at, len(names))
        strategy = parse_strategy(name)
        try:
            rows.append(fit_one(question.model, question.cluster, strategy, question.fields, sizes=True, count=True))
        except AdvisorError as reason:
            left_out.append(f"{strategy.name}: {words(language).of(str(reason))}")
    yield _shown(about(found, say), rows, left_out, language, len(names), len(names))


def _shown(head: str, rows: list[Fit], left_out: list[str], language: str, done: int, of: int) -> str:
    say = words(language)
    parts: list[object] = [head]
    if done < of:
        parts.append(element("p", say("fit.progress", done=done, of=of), "progress", role="status"))
    if rows:
        titles = [say(f"column.{name}") for name in ("strategy", "micro_batch", "seq_len", "fewest", "limit")]
        made = [
            (strategy_name(r.strategy), *(f"{n:,}" if n else "–" for n in (r.micro_batch, r.seq_len, r.fewest_gpus)),
             say.of(r.limited_by or ""))
            for r in (rows if done < of else sorted(rows, key=lambda r: not r.micro_batch))  # what fits stands first
        ]  # fmt: skip
        parts += [table(titles, made, (1, 2, 3)), element("p", say("fit.caption"), "quiet")]
    if left_out and done == of:
        parts.append(folded(say("notes"), listed(left_out)))
    return join(parts)
