"""``dist-advisor convert FILE --to ENGINE``: the nearest configuration of another engine."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from selector.cli.output import check_format, emit, write
from selector.cli.parser import add_question_flags, workload_fields

if TYPE_CHECKING:
    from rich.console import Console

    from selector.convert import Conversion

EXAMPLE = """examples:
  dist-advisor convert ds_config.json --to fsdp --out fsdp.yaml
  dist-advisor convert fsdp.yaml --to deepspeed --model llama-8b --gpus 8xA100
  dist-advisor convert args.json --to fsdp --format json

The new file goes to --out, or to stdout; what became of each value goes to stderr."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    command.add_argument("file", metavar="FILE", help="DeepSpeed JSON, accelerate YAML or TrainingArguments")
    command.add_argument("--to", required=True, metavar="ENGINE", help="deepspeed, fsdp, fsdp1 or ddp")
    add_question_flags(command, need_model=False)


def run(parsed: argparse.Namespace) -> int:
    check_format(parsed)
    from estimators.errors import InputError
    from selector.cli.check import cluster_of
    from selector.convert import convert

    both = parsed.out and os.path.exists(parsed.out) and os.path.exists(parsed.file)
    if both and os.path.samefile(parsed.out, parsed.file):
        raise InputError(f"--out {parsed.out} is the file that is converted; name another")
    made = convert(
        parsed.file,
        parsed.to,
        model=parsed.model,
        cluster=cluster_of(parsed),
        out=parsed.out,
        **workload_fields(parsed),
    )
    if parsed.format != "table":
        document = as_document(made)
        emit(parsed, document, document["rows"], lambda _: None, made.notes)
        return 0
    write(parsed, made.text)
    if not parsed.quiet:
        from rich.console import Console

        draw(Console(file=sys.stderr, highlight=False, width=120, soft_wrap=True), made)
    return 0


def as_document(made: Conversion) -> dict[str, Any]:
    """The JSON: values as rows, what is lost, the file's text, memory before and after."""
    from dataclasses import asdict

    return {
        "schema": "dist-advisor/convert/1",
        "kind": made.kind,
        "file_format": made.format,
        "source_strategy": made.source.name,
        "strategy": made.strategy.name,
        "rows": [asdict(line) for line in made.lines],
        "lost": [asdict(lost) for lost in made.lost],
        "before_bytes": round(made.before.gpu.process.expected) if made.before else None,
        "after_bytes": round(made.after.gpu.process.expected) if made.after else None,
        "placeholders": [{"key": key, "what": what} for key, what in made.placeholders.items()],
        "text": made.text,
        "notes": list(made.notes),
    }


def draw(console: Console, made: Conversion) -> None:
    from estimators.units import gib

    for line in made.lines:
        console.print(f"{line.source} {line.value}  ->  {line.target} {line.becomes}", markup=False)
    if made.lost:
        console.print("no equivalent:", style="bold")
    for lost in made.lost:
        console.print(f"  {lost.key} {lost.value}: {lost.why}", markup=False)
    if made.placeholders:
        console.print("to fill in:", style="bold")
    for key, what in made.placeholders.items():
        console.print(f"  {key}: {what}", markup=False)
    for name, found in (("before", made.before), ("after", made.after)):
        if found:
            console.print(
                f"{name}: {found.strategy} needs {gib(found.gpu.process.expected)} of {gib(found.gpu.capacity)} GiB "
                f"and {gib(found.host.expected, 0)} GiB of host RAM a node",
                markup=False,
            )
    for note in made.notes:
        console.print(f"note: {note}", style="dim", markup=False)
