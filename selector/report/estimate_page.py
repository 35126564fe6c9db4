"""Estimates as HTML: a page of several strategies, and what a notebook shows of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from estimators.memory import Estimate
from estimators.model.spec import ModelSpec
from estimators.units import gib
from selector.report import numbers, pictures
from selector.report.markup import bullets, page, paragraph, section, table, verdict
from selector.report.text import headline, speed
from selector.watched import in_steps


def estimates_page(
    model: ModelSpec, estimates: Sequence[Estimate], left_out: Mapping[str, str], notes: Sequence[str] = ()
) -> str:
    """One self-contained file: the question, every strategy, and the first of them term by term."""
    best = estimates[0]
    _, drawn, memory, clock = in_steps(
        pictures.ready, lambda: pictures.strategies(estimates) if len(estimates) > 1 else "",
        lambda: pictures.memory(best), lambda: pictures.clock(best),
    )  # fmt: skip
    out = table(("strategy", "why not"), list(left_out.items()), stack=True)
    return page(
        f"{model.name}: what {len(estimates)} strategies need",
        (
            f"<h1>{escape(_answer(model, estimates))}</h1>",
            section("Question", numbers.question(model, estimates)),
            section("Strategies", drawn, numbers.strategies(estimates) if len(estimates) > 1 else ""),
            section(
                f"{best.strategy}, term by term",
                f"<p>{verdict(best.verdict)} {escape(best.reason)}</p>",
                f'<div class="pictures">{memory}{clock}</div>',
                "<h3>Memory</h3>", numbers.bytes_of(best), "<h3>By instant</h3>", numbers.instants(best),
                "<h3>What is alive at the peak</h3>", numbers.terms(best), "<h3>Time</h3>", numbers.seconds(best),
            ),
            section("Left out", out),
            section("How far to trust it", numbers.accuracy(estimates)),
            section("Notes", bullets(notes)),
            section("Versions", numbers.versions(best.run.settings.versions)),
        ),
    )  # fmt: skip


def _answer(model: ModelSpec, estimates: Sequence[Estimate]) -> str:
    """How many fit, and which is fastest."""
    gpus = estimates[0].run.cluster
    where = f"{gpus.ranks} x {gpus.gpu.label}"
    works = [e for e in estimates if e.verdict in ("fits", "tight")]
    if not works:
        return f"{model.name} on {where}: none of {len(estimates)} strategies fits"
    if len(estimates) == 1:
        return f"{model.name} on {where}: {works[0].strategy} needs {gib(works[0].gpu.expected)} GiB of each GPU"
    fastest = max(works, key=speed)
    said = f", {fastest.strategy} is the fastest" if speed(fastest) else ""
    return f"{model.name} on {where}: {len(works)} of {len(estimates)} strategies fit{said}"


def html(estimate: Estimate) -> str:
    """What a notebook shows of one estimate: a sentence, the picture, the terms of the peak to unfold."""
    gpu = estimate.gpu
    said = (
        f"{estimate.strategy}: {gib(gpu.expected)} GiB of tensors at {estimate.peak.name}, {gib(gpu.process.expected)} of "
        f"{gib(gpu.capacity)} GiB with context and communicators"
    )
    rate = paragraph(f"{speed(estimate):,.0f} tokens a second of one GPU, expected") if speed(estimate) else ""
    return (
        f"<div style='max-width:48rem'><p>{verdict(estimate.verdict)} <b>{escape(said)}</b></p>"
        + paragraph(headline(estimate.run.model, estimate)) + rate + pictures.memory(estimate, pictures.PAGE)
        + f"<details><summary>what is alive at {escape(estimate.peak.name)}</summary>{numbers.terms(estimate)}</details></div>"
    )  # fmt: skip
