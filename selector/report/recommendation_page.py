"""A recommendation as one HTML file: question, answer, path, numbers, what was rejected, files, accuracy, versions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from estimators.errors import AdvisorError
from estimators.memory import Estimate
from estimators.units import gib
from selector.plots.chosen import looked_at
from selector.report import numbers, pictures
from selector.report.markup import bullets, facts, page, paragraph, pre, section, table, verdict
from selector.report.recommendation import settings_text
from selector.report.text import speed
from selector.report.tree_svg import tree_svg
from selector.watched import in_steps

if TYPE_CHECKING:
    from selector.recommendation import Recommendation

OPEN_LETTERS = 2500  # a file up to so long is shown at once, a longer one when it is unfolded
MOST_LETTERS = 40_000


def recommendation_page(answer: Recommendation) -> str:
    """The whole report. Nothing in it comes from elsewhere; every text is escaped."""
    estimate = answer.estimate
    looked = [estimate, *(r.estimate for r in answer.rejected), *(a.estimate for a in answer.alternatives)]
    kept = [e for e in looked if e is not None][:1]
    title = f"{answer.question.model.name}: {answer.strategy or 'nothing fits'}"
    drawn = _drawn(answer)
    return page(
        title,
        (
            f"<h1>{_headline(answer, estimate)}</h1>",
            section("Question", numbers.asked(answer.question)),
            section("Answer", _answer(answer, estimate)),
            section("Why", bullets(answer.reasons)),
            section("The path through the tree", _path(answer)),
            _numbers(estimate, *drawn[:2]),
            section("Rejected", _rejected(answer)),
            section(
                "What else there is" if answer.choice else "What would work, and what came nearest",
                _others(answer, drawn[2]),
            ),
            section("Files to run", _files(answer)),
            section("How far to trust it", numbers.accuracy(kept)),
            section("What would change the answer", bullets(answer.would_change)),
            section("Where the documents disagree", bullets(answer.conflicts)),
            section("Beside it", bullets(answer.remarks)),
            section("Notes", bullets(estimate.notes if estimate else ())),
            section("Versions", numbers.versions(kept[0].run.settings.versions) if kept else ""),
        ),
    )


def _headline(answer: Recommendation, estimate: Estimate | None) -> str:
    from html import escape

    name = escape(answer.question.model.name)
    if answer.strategy is None or estimate is None:
        return f"Nothing that was looked at trains {name} here"
    return f"{name}: {escape(answer.strategy)} {verdict(estimate.verdict)}"


def _answer(answer: Recommendation, estimate: Estimate | None) -> str:
    said = paragraph(re.split("; run: |; what would stands", answer.headline)[0] + ".")  # the command stands below
    if estimate is None or answer.strategy is None:
        return said + paragraph("Ask what would fit:") + pre(answer.next_command)
    rows = [("strategy", answer.strategy), ("engine", answer.engine or "")]
    settings = settings_text(answer.settings)
    if settings:
        rows.append(("chosen settings", settings))
    gpu = estimate.gpu
    rows += [
        ("memory of one GPU", f"{gib(gpu.expected)} GiB of tensors at {estimate.peak.name}, {gib(gpu.process.expected)} GiB of "
                              f"the process, of {gib(gpu.capacity)} GiB"),
        ("host RAM of a node", f"{gib(estimate.host.expected)} GiB"),
    ]  # fmt: skip
    if estimate.nvme_bytes:
        rows.append(("NVMe of a node", f"{gib(estimate.nvme_bytes)} GiB"))
    if speed(estimate):
        rows.append(("speed", f"{speed(estimate):,.0f} tokens a second of one GPU, expected"))
    start = paragraph("Start it with:") + pre(answer.commands["launch"]) if "launch" in answer.commands else ""
    return said + facts(rows) + start


def _path(answer: Recommendation) -> str:
    drawn = tree_svg(answer.reading)
    steps = [(s.question, s.answer, s.because, s.source) for s in answer.path]
    return drawn + table(("question", "answer", "because", "source"), steps, stack=True)


def _drawn(answer: Recommendation) -> tuple[str, str, str]:
    """The pictures: memory and the clock of the choice, and what else was looked at."""
    estimate, looked = answer.estimate, looked_at(answer)
    _, memory, clock, beside = in_steps(
        pictures.ready, lambda: pictures.memory(estimate) if estimate else "",
        lambda: pictures.clock(estimate) if estimate else "", lambda: pictures.strategies(looked) if looked else "",
    )  # fmt: skip
    return memory, clock, beside


def _numbers(estimate: Estimate | None, memory: str, clock: str) -> str:
    if estimate is None:
        return ""
    drawn = f'<div class="pictures">{memory}{clock}</div>'
    return section(
        "Numbers", drawn, "<h3>Memory</h3>", numbers.bytes_of(estimate), "<h3>By instant</h3>", numbers.instants(estimate),
        "<h3>What is alive at the peak</h3>", numbers.terms(estimate), "<h3>Time</h3>", numbers.seconds(estimate),
    )  # fmt: skip


def _rejected(answer: Recommendation) -> str:
    by_reason: dict[str, list[str]] = {}
    for out in answer.rejected:
        by_reason.setdefault(out.why, []).append(out.strategy)
    return table(("strategy", "why not"), [(", ".join(names), why) for why, names in by_reason.items()], stack=True)


def _others(answer: Recommendation, drawn: str) -> str:
    rows = [
        (a.strategy, f"verdict:{a.estimate.verdict}", gib(a.estimate.gpu.process.expected), gib(a.estimate.host.expected, 0),
         settings_text(a.changes), a.why)
        for a in answer.alternatives
    ]  # fmt: skip
    return table(("strategy", "verdict", "GPU GiB", "host GiB", "with", "why"), rows, stack=True) + drawn


def _files(answer: Recommendation) -> str:
    """The text of every file that ``--emit`` writes, or why there are none."""
    if answer.estimate is None or answer.strategy is None:
        return ""
    from html import escape

    from selector.configs import files_of

    try:
        files = files_of(answer)
    except AdvisorError as reason:
        return paragraph(f"No files: {reason}")
    said = paragraph("recommend --emit DIR writes these files; DIR/README.md says how to start them.", quiet=True)
    found = []
    for name, text in files.items():
        opened = " open" if len(text) <= OPEN_LETTERS else ""
        size = f"{len(text.encode()):,} bytes"
        cut = text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS] + "\n[cut here; --emit writes it whole]"
        found.append(f"<details{opened}><summary><code>{escape(name)}</code> ({size})</summary>{pre(cut)}</details>")
    return said + "".join(found)
