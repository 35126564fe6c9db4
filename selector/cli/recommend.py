"""``dist-advisor recommend``: the choice, the way through the tree, why, and what was rejected."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any

from selector.cli.following import question_words, say_next
from selector.cli.output import check_format, emit, emit_page, picture
from selector.cli.parser import add_plot_flag, add_question_flags, question_of

EXAMPLE = """examples:
  dist-advisor recommend --model llama-8b --gpus 8xA100-80GB --team pytorch
  dist-advisor recommend --model llama-8b --gpus A10 --allow qlora
  dist-advisor recommend --model qwen2.5-72b --gpus 2x8xH100 --global-batch 128 --seq-len 8192 --format json
  dist-advisor recommend --model llama-13b --gpus 4xA100-40GB --policy documents --goal documents
  dist-advisor recommend --model llama-8b --gpus 4xA10 --strategy zero3-offload --host-memory 512GB
  dist-advisor recommend --model llama-8b --gpus 8xH100 --format html --out report.html"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    add_question_flags(command)
    group = command.add_argument_group("choice")
    group.add_argument("--team", metavar="T", help="pytorch, deepspeed or distributed: what the team knows")
    group.add_argument("--deepspeed-experience", action="store_true", help="the team has run DeepSpeed before")
    group.add_argument("--policy", default="current", metavar="P", help="documents or current (current)")
    group.add_argument("--goal", default="fastest", metavar="G", help="fastest, simplest or documents (fastest)")
    group.add_argument("--allow", default="", metavar="M", help="methods that may replace full training: lora,qlora")
    group.add_argument("--global-batch", metavar="N", help="sequences per optimizer step, all GPUs together")
    group.add_argument("--strategy", metavar="S", help="the choice is yours; the rest is as before")
    group.add_argument("--emit", metavar="DIR", help="write the files to run it there")
    group.add_argument("--force", action="store_true", help="--emit may overwrite files that are there")
    add_plot_flag(command, "the memory of the choice by instant; where nothing fits, of what came nearest")
    group.add_argument("--require-fit", action="store_true", help="exit with 1 when nothing fits")


def run(parsed: argparse.Namespace) -> int:
    check_format(parsed)
    from selector import recommend
    from selector.launch import started, started_inside

    model, cluster, fields = question_of(parsed)
    if parsed.emit:
        _check_stack(fields)
    answer = recommend(
        model, cluster, team=parsed.team, deepspeed_experience=parsed.deepspeed_experience, policy=parsed.policy,
        goal=parsed.goal, allow=parsed.allow, global_batch=parsed.global_batch, strategy=parsed.strategy, **fields,
    )  # fmt: skip
    written = answer.emit(parsed.emit, force=parsed.force) if parsed.emit else None
    notes = answer.estimate.notes if answer.estimate else ()
    if parsed.format == "json":
        document = answer.document()
        if written is not None:
            document["files"] = [str(path) for path in written]
            document["commands"]["launch"] = started(parsed.emit, cluster.nodes)
        emit(parsed, document, [], lambda _: None, notes)
    elif parsed.format == "html":
        emit_page(parsed, answer.report())
    else:
        from selector.report.recommendation import rows

        emit(parsed, {}, rows(answer) if parsed.format != "table" else [], lambda c: c.print(answer), notes)
    picture(parsed, answer.plot)
    if written is not None and not parsed.quiet:
        start = started_inside(cluster.nodes)
        print(f"note: {len(written)} files in {parsed.emit}; README.md says what each is; {start} starts the run",
              file=sys.stderr)  # fmt: skip
    if parsed.emit and answer.estimate is not None:
        say_next(parsed, f"validate {shlex.quote(parsed.emit)}")
    elif answer.estimate is not None and answer.choice is not None and _is_written(fields):
        say_next(parsed, f"recommend {question_words(parsed)}{_choice_words(parsed)} --emit run/")
    fits = answer.estimate is not None and answer.estimate.verdict in ("fits", "tight")
    return 1 if parsed.require_fit and not fits else 0


def _check_stack(fields: dict[str, Any]) -> None:
    """Before anything is computed: whether files can be written for the stack."""
    from estimators.workload import STACKS
    from selector.configs.bundle import check_stack

    if fields.get("stack") in STACKS:
        check_stack(fields["stack"])


def _is_written(fields: dict[str, Any]) -> bool:
    if fields.get("stack") is None:
        return True
    from selector.configs.bundle import is_written

    return is_written(fields["stack"])


def _choice_words(parsed: argparse.Namespace) -> str:
    """Flags of the choice that were given."""
    usual = {"policy": "current", "goal": "fastest", "allow": ""}
    words: list[str] = []
    for flag in ("team", "policy", "goal", "allow", "global_batch", "strategy"):
        value = getattr(parsed, flag)
        if value is not None and value != usual.get(flag):
            words += [f"--{flag.replace('_', '-')}", shlex.quote(str(value))]
    words += ["--deepspeed-experience"] if parsed.deepspeed_experience else []
    return "".join(f" {word}" for word in words)
