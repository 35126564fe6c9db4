"""``dist-advisor diagnose LOG``: what an out-of-memory or engine error means for this run."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING, Any

from selector.cli.following import question_words, say_next
from selector.cli.output import check_format, emit
from selector.cli.parser import add_question_flags, workload_fields

if TYPE_CHECKING:
    from rich.console import Console

    from selector.diagnose import Diagnosis

EXAMPLE = """examples:
  dist-advisor diagnose train.log
  tail -200 train.log | dist-advisor diagnose -
  dist-advisor diagnose train.log --config ds_config.json --model llama-8b --gpus 4xA10
  dist-advisor diagnose train.log --strategy zero3 --model llama-8b --gpus 4xA10 --micro-batch 4"""
MAX_BYTES = 8 * 2**20  # the end of a log tells


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    command.add_argument("log", metavar="LOG", help="a file with the message, or - for standard input")
    command.add_argument(
        "--config", action="append", metavar="FILE", help="configuration of the run; several if need be"
    )
    command.add_argument("--strategy", metavar="S", help="what ran, where no configuration says it")
    add_question_flags(command, need_model=False)


def run(parsed: argparse.Namespace) -> int:
    check_format(parsed)
    from selector.cli.check import cluster_of
    from selector.diagnose import diagnose

    answer = diagnose(
        read_log(parsed.log),
        configs=parsed.config or (),
        model=parsed.model,
        cluster=cluster_of(parsed),
        strategy=parsed.strategy,
        **workload_fields(parsed),
    )
    document = as_document(answer)
    emit(parsed, document, document["rows"], lambda console: draw(console, answer), answer.notes)
    if parsed.model and parsed.gpus:
        say_next(parsed, f"recommend {question_words(parsed)}")
    else:
        say_next(parsed, f"diagnose {shlex.quote(parsed.log)} --model M --gpus C --strategy S")
    return 0


def read_log(name: str) -> str:
    """The last ``MAX_BYTES`` of a log, as text."""
    from estimators.errors import InputError

    try:
        if name == "-":
            return sys.stdin.buffer.read()[-MAX_BYTES:].decode("utf-8", "replace")
        with open(name, "rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - MAX_BYTES, 0))
            return file.read(MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {name[:200]!r}: {getattr(error, 'strerror', None) or error}") from None


def as_document(answer: Diagnosis) -> dict[str, Any]:
    """The JSON: causes as rows, and beside them the message, what matches its size, and the changes."""
    from dataclasses import asdict

    return {
        "schema": "dist-advisor/diagnose/1",
        "kind": answer.kind,
        "instant": answer.instant,
        "rows": [asdict(cause) for cause in answer.causes],
        "out_of_memory": asdict(answer.oom) if answer.oom else None,
        "matches": [asdict(match) for match in answer.matches],
        "strategy": answer.estimate.strategy if answer.estimate else None,
        "expected_bytes": round(answer.estimate.gpu.process.expected) if answer.estimate else None,
        "changes": [{**asdict(remedy), "changes": dict(remedy.changes)} for remedy in answer.remedies],
        "notes": list(answer.notes),
    }


def draw(console: Console, answer: Diagnosis) -> None:
    from estimators.units import gib

    at = f" at {answer.instant}" if answer.instant else ""
    console.print(f"{answer.kind}{at}", style="bold")
    if answer.oom:
        have = f" of a card of {gib(answer.oom.capacity)} GiB" if answer.oom.capacity else ""
        free = f", {gib(answer.oom.free)} GiB free" if answer.oom.free is not None else ""
        console.print(f"tried to allocate {gib(answer.oom.tried)} GiB{have}{free}")
    for cause in answer.causes:
        place = f"  (line {cause.line})" if cause.line else ""
        console.print(f"\n{cause.title}{place}", style="bold", markup=False)
        console.print(f"  {cause.because}", markup=False)
        if cause.where:
            console.print(f"  {cause.where}", markup=False)
        console.print(f"  fix: {cause.fix}", markup=False)
        if cause.source:
            console.print(f"  {cause.source}", style="dim", markup=False)
    if not answer.causes:
        console.print("nothing in this log is known here; paste the lines around the first error")
    if answer.remedies:
        console.print("\nchanges, each estimated, the smallest first", style="bold")
        for remedy in answer.remedies:
            console.print(f"  {remedy.says}", markup=False)
