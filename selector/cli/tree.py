"""``dist-advisor tree``: the decision tree of the documents, as text, Mermaid, DOT or JSON."""

from __future__ import annotations

import argparse

from estimators.errors import InputError
from selector.cli.formatting import wrapped
from selector.cli.output import as_csv, as_markdown, columns, write

EXAMPLE = """examples:
  dist-advisor tree
  dist-advisor tree --policy documents --format mermaid
  dist-advisor tree --format dot --out tree.dot"""
FORMATS = ("text", "mermaid", "dot", "json", "csv", "markdown")


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE + f"\n\nformats: {', '.join(FORMATS)} (text)"
    command.add_argument("--policy", default="current", metavar="P", help="documents or current (current)")


def run(parsed: argparse.Namespace) -> int:
    from selector.cli.output import check_format
    from selector.tree import draw
    from selector.tree.policies import check_policy

    kind = "text" if parsed.format == "table" else parsed.format
    if kind not in FORMATS:
        raise InputError(f"format {kind!r} is not one of {', '.join(FORMATS)}")
    parsed.format = "table"
    check_format(parsed)
    policy = check_policy(parsed.policy)
    if kind == "json":
        import json

        text = json.dumps(draw.document(policy), indent=1, ensure_ascii=False) + "\n"
    elif kind in ("csv", "markdown"):
        rows = draw.document(policy)["rows"]
        text = as_csv(rows) if kind == "csv" else as_markdown(rows)
    else:
        text = {"text": draw.text, "mermaid": draw.mermaid, "dot": draw.dot}[kind](policy)
    if kind == "text" and not parsed.out:
        text = wrapped(text, columns())
    write(parsed, text)
    return 0
