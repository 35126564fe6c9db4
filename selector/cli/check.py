"""``dist-advisor check FILE...``: findings on existing configurations."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from selector.cli.following import say_next
from selector.cli.output import check_format, emit, write
from selector.cli.parser import add_question_flags, workload_fields

if TYPE_CHECKING:
    from rich.console import Console

    from estimators.cluster import Cluster
    from selector.checks import Finding

EXAMPLE = """examples:
  dist-advisor check ds_config.json
  dist-advisor check .                       # this folder's configurations
  dist-advisor check accelerate.yaml args.json train.py --model llama-8b --gpus 8xA100
  dist-advisor check ds_config.json --fix
  dist-advisor check configs/*.json --format sarif --out findings.sarif

DeepSpeed JSON, accelerate YAML, TrainingArguments and their supersets (LLaMA-Factory, Axolotl, ms-swift), train.py.
exit status: 0 no error was found, 1 an error was found, 2 a file cannot be read"""
STYLE = {"error": "bold red", "warning": "yellow", "info": "dim"}


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    command.add_argument(
        "files", nargs="+", metavar="FILE", help="files of one run, or several of one kind; a folder that holds them"
    )
    command.add_argument(
        "--fix", action="store_true", help="write a corrected copy beside each file, show the difference"
    )
    command.add_argument("--rule", action="append", metavar="NAME", help="this rule only; may be given several times")
    add_question_flags(command, need_model=False)


def run(parsed: argparse.Namespace) -> int:
    sarif_wanted = parsed.format == "sarif"
    if not sarif_wanted:
        check_format(parsed)
    from estimators.errors import InputError, UnknownName
    from selector.checks import check_files
    from selector.checks.folders import expanded
    from selector.checks.rules import BESIDE, RULES

    if parsed.model and not parsed.gpus:
        raise InputError("--model without --gpus: the capacity rules need both; give --gpus 8xA100")
    for name in parsed.rule or ():
        if name not in RULES and name not in BESIDE:
            raise UnknownName("rule", name, [*RULES, *BESIDE])
    files, notes = expanded(parsed.files)
    for note in notes if not parsed.quiet else ():
        print(f"note: {note}", file=sys.stderr)
    findings = check_files(files, model=parsed.model, cluster=cluster_of(parsed), **workload_fields(parsed))
    if parsed.rule:
        findings = tuple(f for f in findings if f.rule in parsed.rule)
    if sarif_wanted:
        _write_sarif(parsed, findings)
    else:
        rows = [f.as_dict() for f in findings]
        document = {"schema": "dist-advisor/check/1", "findings": rows}
        flat = [{**row, "suggestions": " ".join(row["suggestions"])} for row in rows]
        emit(parsed, document, flat, lambda console: draw(console, findings))
    if parsed.fix:
        _fix(parsed, findings)
    elif not sarif_wanted and any(f.suggestions for f in findings):
        say_next(parsed, f"check {shlex.join(parsed.files)} --fix")
    elif not sarif_wanted and not parsed.model:
        say_next(parsed, f"check {shlex.join(parsed.files)} --model M --gpus C")
    return 1 if any(f.severity == "error" for f in findings) else 0


def cluster_of(parsed: argparse.Namespace) -> Cluster | None:
    if not parsed.gpus:
        return None
    from estimators.cluster import parse_cluster
    from selector.cli.parser import CLUSTER_FLAGS, calibrated

    facts = {f.replace("-", "_"): getattr(parsed, f.replace("-", "_")) for f in CLUSTER_FLAGS}
    return calibrated(parsed, parse_cluster(parsed.gpus, **facts))


def _write_sarif(parsed: argparse.Namespace, findings: Sequence[Finding]) -> None:
    import json
    from importlib.metadata import PackageNotFoundError, version

    from selector.checks.sarif import sarif

    try:
        own = version("dist-advisor")
    except PackageNotFoundError:
        own = "0"
    write(parsed, json.dumps(sarif(findings, own), indent=1, ensure_ascii=False) + "\n")


def _fix(parsed: argparse.Namespace, findings: Sequence[Finding]) -> None:
    from estimators.errors import InputError
    from selector.checks import fixing

    copies = fixing.corrected(findings)
    try:
        fixing.write(copies)
    except OSError as error:
        raise InputError(f"the corrected copy cannot be written: {error.strerror}") from None
    for made in copies:
        print(f"{made.path} is a corrected copy of {made.original.name}:", file=sys.stderr)
        print(made.difference, file=sys.stderr)
    if not copies and not parsed.quiet:
        print("note: nothing that --fix can correct", file=sys.stderr)


def draw(console: Console, findings: Sequence[Finding]) -> None:
    """One finding a paragraph: severity, place, message; what to write instead; where that is known from."""
    from rich.padding import Padding
    from rich.text import Text

    def below(text: str, style: str = "") -> None:
        console.print(Padding(Text(text, style), (0, 0, 0, 8)))

    for finding in findings:
        place = finding.file + (f":{finding.line}" if finding.line else "")
        head = Text(f"{finding.severity:8}", STYLE[finding.severity])
        console.print(head.append(f"{place}  ", "default").append(finding.where, "bold"))
        below(finding.message)
        below(f"fix: {finding.fix}")
        below(f"{finding.rule} ({finding.source})", "dim")
    total = {s: sum(f.severity == s for f in findings) for s in STYLE}
    words = [f"{n} {s if s == 'info' else s + ('' if n == 1 else 's')}" for s, n in total.items() if n]
    console.print(", ".join(words) if words else "no findings", style="bold", highlight=False)
