"""``dist-advisor explain A [B]``: the terms of a strategy, or why B needs more or less than A."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from selector.cli.output import check_format, emit, picture
from selector.cli.parser import add_plot_flag, add_question_flags, question_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from estimators.memory import Estimate
    from estimators.model.spec import ModelSpec

EXAMPLE = """examples:
  dist-advisor explain --model llama-8b --gpus 4xA10 zero3-offload
  dist-advisor explain --model llama-8b --gpus 8xA100 zero2 zero3
  dist-advisor explain --model llama-8b --gpus 8xA100 ddp fsdp --instant step
  dist-advisor explain --model llama-8b --gpus 8xA100 zero3 --plot clock.png"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    command.add_argument("strategies", nargs="+", metavar="STRATEGY", help="A, or A and B")
    add_question_flags(command)
    add_plot_flag(command, "the clock of one step, or A and B by instant")
    command.add_argument("--instant", metavar="I", help="load, forward, backward, reduce, step or save; default all")


def run(parsed: argparse.Namespace) -> int:
    check_format(parsed)
    from estimators.errors import InputError, UnknownName
    from estimators.memory import estimate
    from estimators.result import INSTANTS

    if len(parsed.strategies) > 2:
        raise InputError(f"explain takes one or two strategies, not {len(parsed.strategies)}")
    if parsed.instant and parsed.instant not in INSTANTS:
        raise UnknownName("instant", parsed.instant, INSTANTS, f"(one of {', '.join(INSTANTS)})")
    model, cluster, fields = question_of(parsed)
    estimates = [estimate(model, cluster, s, **fields) for s in parsed.strategies]
    if len(estimates) == 1:
        explain_one(parsed, model, estimates[0])
    else:
        explain_two(parsed, estimates[0], estimates[1])
    picture(parsed, lambda: draw_picture(estimates))
    return 0


def draw_picture(estimates: list[Estimate]) -> Figure:
    """One strategy along a step, two by instant."""
    from selector import plots

    return plots.step_clock(estimates[0]) if len(estimates) == 1 else plots.difference(estimates[0], estimates[1])


def explain_one(parsed: argparse.Namespace, model: ModelSpec, estimate: Estimate) -> None:
    from selector.levers import levers
    from selector.report.document import entry
    from selector.report.levers import draw_levers
    from selector.report.terms import draw_terms

    shown = [i for i in estimate.instants if parsed.instant in (None, i.name)]
    rows = [
        {"instant": i.name, "name": t.name, "category": t.category, "place": t.place, "bytes": t.bytes, "formula": t.formula}
        for i in shown
        for t in i.terms
    ]  # fmt: skip
    made = levers(estimate, model)
    document = {"schema": "dist-advisor/explain/1", "rows": rows, "estimate": entry(estimate, made)}

    def draw(console: Console) -> None:
        draw_terms(console, estimate, shown)
        draw_levers(console, estimate, made)

    emit(parsed, document, rows, draw, estimate.notes)


def explain_two(parsed: argparse.Namespace, a: Estimate, b: Estimate) -> None:
    from selector.report.difference import instants_in_common, lines, sentence
    from selector.report.terms import draw_difference

    names = [n for n in instants_in_common(a, b) if parsed.instant in (None, n)]
    rows: list[dict[str, Any]] = [
        {"instant": n, "category": x.category, "name": x.name, "place": x.place, "a_bytes": x.a_bytes,
         "b_bytes": x.b_bytes, "difference_bytes": x.difference, "formula": x.formula}
        for n in names
        for x in lines(a[n], b[n])
    ]  # fmt: skip
    document = {
        "schema": "dist-advisor/explain/1",
        "a": a.strategy,
        "b": b.strategy,
        "answer": sentence(a, b),
        "rows": rows,
    }
    notes = tuple(dict.fromkeys((*a.notes, *b.notes)))
    emit(parsed, document, rows, lambda c: draw_difference(c, a, b, names), notes)
