"""A recommendation as JSON of the contract, as rows, and as what a terminal shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from estimators.memory import Estimate
from estimators.units import gib
from selector.cost import tokens_per_second
from selector.report.document import entry, question
from selector.report.text import VERDICT_STYLE

if TYPE_CHECKING:
    from rich.console import RenderableType

    from selector.near import Alternative
    from selector.recommendation import Recommendation


def document(answer: Recommendation) -> dict[str, Any]:
    """``dist-advisor/recommendation/1``."""
    shown = answer.estimate or next((a.estimate for a in answer.alternatives), None)
    found: dict[str, Any] = {
        "schema": "dist-advisor/recommendation/1",
        "strategy": answer.strategy,
        "engine": answer.engine,
        "policy": answer.policy,
        "goal": answer.question.goal,
        "headline": answer.headline,
        "leaf": answer.leaf,
        "tree_strategy": answer.reading.strategy,
        "path": [asdict(step) for step in answer.path],
        "reasons": list(answer.reasons),
        "settings": dict(answer.settings),
        "rejected": [{"strategy": r.strategy, "why": r.why} for r in answer.rejected],
        "alternatives": [alternative(a) for a in answer.alternatives],
        "estimate": entry(answer.estimate) if answer.estimate else None,
        "would_change": list(answer.would_change),
        "conflicts": list(answer.conflicts),
        "remarks": list(answer.remarks),
        "trust": answer.trust,
        "commands": answer.commands,
        "files": [],
    }
    return {**found, **(question(answer.question.model, [shown]) if shown else {})}


def alternative(found: Alternative) -> dict[str, Any]:
    return {"strategy": found.strategy, "changes": found.changes, "estimate": entry(found.estimate), "why": found.why}


def rows(answer: Recommendation) -> list[dict[str, Any]]:
    """The choice, the alternatives and what was rejected, a strategy a row."""
    found = []
    if answer.estimate is not None and answer.strategy is not None:
        found.append(_row("choice", answer.strategy, answer.settings, answer.estimate, answer.headline))
    found += [_row("alternative", a.strategy, a.changes, a.estimate, a.why) for a in answer.alternatives]
    found += [_row("rejected", r.strategy, {}, r.estimate, r.why) for r in answer.rejected]
    return found


def _row(role: str, strategy: str, changes: Mapping[str, Any], estimate: Estimate | None, why: str) -> dict[str, Any]:
    return {
        "role": role,
        "strategy": strategy,
        "changes": settings_text(changes),
        "verdict": estimate.verdict if estimate else None,
        "gpu_process_bytes": round(estimate.gpu.process.expected) if estimate else None,
        "gpu_capacity_bytes": estimate.gpu.capacity if estimate else None,
        "host_bytes_per_node": round(estimate.host.expected) if estimate else None,
        "tokens_per_s_per_gpu": tokens_per_second(estimate) if estimate else None,
        "why": why,
    }


def settings_text(settings: Mapping[str, Any]) -> str:
    """``checkpointing none, loss fused``."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())


def sections(answer: Recommendation) -> Iterator[tuple[str, list[str]]]:
    """Titles and lines in the order of an answer; empty ones are left out."""
    path = [f"{s.question} {s.answer}: {s.because} [{s.source}]" for s in answer.path]
    settings = settings_text(answer.settings)
    for title, lines in (
        ("why", list(answer.reasons)),
        ("settings", [settings] if settings else []),
        ("the way through the tree", path),
        ("what would change the answer", list(answer.would_change)),
        ("where the documents disagree", list(answer.conflicts)),
        ("beside it", list(answer.remarks)),
        ("how far to trust it", [answer.trust]),
    ):
        if lines:
            yield title, lines


def rendered(answer: Recommendation, width: int = 120) -> Iterator[RenderableType]:
    """What a terminal shows: the sentence, why, numbers, what was rejected."""
    from rich.padding import Padding
    from rich.text import Text

    yield Text(answer.headline, "bold")
    for number, (title, lines) in enumerate(sections(answer)):
        yield Text(f"\n{title}", "dim")
        for line in lines:
            yield Padding(Text(f"- {line}"), (0, 0, 0, 1))
        if number == 0 and answer.alternatives:
            title = "what else there is" if answer.choice else "what would work, and what came nearest"
            yield Text(f"\n{title}", "dim")
            yield _table(answer)
    if answer.rejected:
        yield Text("\nrejected", "dim")
        yield _rejected(answer)


def _table(answer: Recommendation) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
    longest = max(len(found.strategy) for found in answer.alternatives)
    table.add_column("strategy", overflow="fold", no_wrap=longest <= 34)
    for title in ("verdict", "GPU GiB", "host GiB"):
        table.add_column(title, justify="right" if "GiB" in title else "left", no_wrap=True)
    table.add_column("with", overflow="fold")
    for found in answer.alternatives:
        estimate = found.estimate
        table.add_row(
            found.strategy, Text(estimate.verdict, VERDICT_STYLE[estimate.verdict]),
            gib(estimate.gpu.process.expected, 1), gib(estimate.host.expected, 0), settings_text(found.changes),
        )  # fmt: skip
    return table


def _rejected(answer: Recommendation) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=False, overflow="fold")
    table.add_column(overflow="fold", style="dim")
    by_reason: dict[str, list[str]] = {}
    for out in answer.rejected:
        by_reason.setdefault(out.why, []).append(out.strategy)
    for why, names in by_reason.items():
        table.add_row(", ".join(names), why)
    return table
