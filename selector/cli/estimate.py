"""``dist-advisor estimate``: every strategy's memory for a model on given GPUs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from selector.cli.following import question_words, say_next
from selector.cli.output import check_format, emit, emit_page, picture
from selector.cli.parser import add_plot_flag, add_question_flags, question_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from estimators.memory import Estimate
    from estimators.model.spec import ModelSpec
    from selector.levers import Lever

EXAMPLE = """examples:
  dist-advisor estimate --model llama-8b --gpus 4xA10
  dist-advisor estimate --model qwen2.5-7b --gpus 8xH100 --method lora --strategy zero2 --strategy fsdp
  dist-advisor estimate --model ./my-model --gpus 2x8xA100-80GB --format json --out estimate.json
  dist-advisor estimate --model llama-8b --gpus 4xA100 --strategy zero2 --micro-batch 4 --levers
  dist-advisor estimate --model llama-8b --gpus 4xA10 --plot strategies.svg
  dist-advisor estimate --model llama-8b --gpus 4xA10 --format html --out report.html
  dist-advisor estimate --config ds_config.json --model llama-8b --gpus 4xA100"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    add_question_flags(command)
    command.add_argument("--strategy", action="append", metavar="S", help="only this one; may be repeated")
    command.add_argument("--all", action="store_true", help="every legal strategy, not only the usual ones")
    command.add_argument("--config", metavar="FILE", help="a DeepSpeed JSON, accelerate YAML or TrainingArguments file")
    command.add_argument("--levers", action="store_true",
                         help="what would lower each peak most, each change with the bytes it saves (as explain does)")  # fmt: skip
    add_plot_flag(command, "the strategies side by side, or one by instant")
    command.add_argument("--require-fit", action="store_true", help="exit with 1 when nothing fits")


def run(parsed: argparse.Namespace) -> int:
    check_format(parsed)
    from estimators.memory import estimate_all
    from selector.report.text import by_verdict, headline

    model, cluster, fields = question_of(parsed)
    strategies: list[Any] | None = parsed.strategy
    notes: list[str] = []
    if parsed.config:
        from selector.cli.configured import merge_config

        strategies, fields, notes = merge_config(parsed.config, cluster, strategies, fields)
    estimates, left_out = estimate_all(model, cluster, strategies, everything=parsed.all, **fields)
    if not estimates:
        from estimators.errors import IllegalCombination

        raise IllegalCombination("no strategy is legal here: " + "; ".join(dict.fromkeys(left_out.values())))
    estimates = by_verdict(estimates)
    notes += [f"{name} left out: {why}" for name, why in left_out.items()]
    notes += dict.fromkeys(note for e in estimates for note in e.notes)
    made = levers_of(parsed, model, estimates)
    if parsed.format == "json":
        from selector.report.document import estimate_document

        emit(parsed, estimate_document(model, estimates, left_out, made), [], lambda _: None, notes)
    elif parsed.format == "html":
        from selector.report.estimate_page import estimates_page

        emit_page(parsed, estimates_page(model, estimates, left_out, notes))
    else:
        from selector.report.table import draw_estimates, rows_of

        def draw(console: Console) -> None:
            draw_estimates(console, headline(model, estimates[0]), estimates)
            if made:
                from selector.report.levers import draw_levers

                for estimate, found in zip(estimates, made, strict=True):
                    draw_levers(console, estimate, found)

        emit(parsed, {}, rows_of(estimates) if parsed.format != "table" else [], draw, notes)
    picture(parsed, lambda: draw_picture(estimates))
    failed = all(e.verdict in ("no", "unknown") for e in estimates)
    if not parsed.config and parsed.format == "table":
        say_next(parsed, following(parsed, failed, len(estimates)))
    return 1 if parsed.require_fit and failed else 0


def following(parsed: argparse.Namespace, failed: bool, count: int) -> str:
    """Why it does not fit, or what to choose of what fits."""
    if failed and count == 1:
        return f"explain {question_words(parsed)} {parsed.strategy[0] if parsed.strategy else 'single'}"
    return f"recommend {question_words(parsed)}" + (" --allow lora,qlora" if failed else "")


def levers_of(
    parsed: argparse.Namespace, model: ModelSpec, estimates: Sequence[Estimate]
) -> list[tuple[Lever, ...]] | None:
    """What would lower each peak, where it was asked for, or where the table is of one strategy that was named.

    A dozen estimates a strategy: too much for every strategy of every answer.
    """
    alone = len(estimates) == 1 and bool(parsed.strategy) and parsed.format == "table"
    if not (parsed.levers or alone):
        return None
    from selector.levers import levers

    return [levers(estimate, model) for estimate in estimates]


def draw_picture(estimates: list[Estimate]) -> Figure:
    """One strategy by instant, several side by side."""
    from selector import plots

    return plots.memory_by_instant(estimates[0]) if len(estimates) == 1 else plots.strategies(estimates)
