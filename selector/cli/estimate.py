"""``dist-advisor estimate``: every strategy's memory for a model on given GPUs."""

from __future__ import annotations

import argparse
from typing import Any

from selector.cli.output import check_format, emit
from selector.cli.parser import add_question_flags, question_of

EXAMPLE = """examples:
  dist-advisor estimate --model llama-8b --gpus 4xA10
  dist-advisor estimate --model qwen2.5-7b --gpus 8xH100 --method lora --strategy zero2 --strategy fsdp
  dist-advisor estimate --model ./my-model --gpus 2x8xA100-80GB --format json --out estimate.json
  dist-advisor estimate --config ds_config.json --model llama-8b --gpus 4xA100"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    add_question_flags(command)
    command.add_argument("--strategy", action="append", metavar="S", help="only this one; may be repeated")
    command.add_argument("--all", action="store_true", help="every legal strategy, not only the usual ones")
    command.add_argument("--config", metavar="FILE", help="a DeepSpeed JSON, accelerate YAML or TrainingArguments file")
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
    if parsed.format == "json":
        from selector.report.document import estimate_document

        emit(parsed, estimate_document(model, estimates, left_out), [], lambda _: None, notes)
    else:
        from selector.report.table import draw_estimates, rows_of

        rows = rows_of(estimates) if parsed.format != "table" else []
        emit(parsed, {}, rows, lambda c: draw_estimates(c, headline(model, estimates[0]), estimates), notes)
    failed = all(e.verdict in ("no", "unknown") for e in estimates)
    return 1 if parsed.require_fit and failed else 0
