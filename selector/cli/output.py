"""Where results go: stdout or a file, in the format that was asked for. Notes go to stderr."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from estimators.errors import InputError
from selector.cli.parser import formats_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

Rows = Sequence[Mapping[str, Any]]


def check_format(parsed: argparse.Namespace) -> None:
    """Refuse an unknown format, or a file that cannot be written, before anything is computed."""
    known = formats_of(parsed.command)
    if parsed.format not in known:
        raise InputError(f"format {parsed.format!r} is not one of {', '.join(known)}")
    if parsed.out:
        folder = os.path.dirname(os.path.abspath(parsed.out))
        if not os.path.isdir(folder):
            raise InputError(f"--out {parsed.out}: there is no folder {folder}")
        if os.path.isdir(parsed.out):
            raise InputError(f"--out {parsed.out} is a folder; name a file")
    if getattr(parsed, "plot", None):
        from selector.plots import check

        check(parsed.plot)


def emit(
    parsed: argparse.Namespace,
    document: Mapping[str, Any],
    rows: Rows,
    draw: Callable[[Console], None],
    notes: Sequence[str] = (),
) -> None:
    """Print one result: ``document`` is its JSON, ``rows`` its CSV and markdown, ``draw`` its table."""
    if parsed.format == "table":
        write(parsed, drawn(draw, parsed.out))
    elif parsed.format == "json":
        write(parsed, as_json(document))
    else:
        write(parsed, as_csv(rows) if parsed.format == "csv" else as_markdown(rows))
    if not parsed.quiet:
        for note in notes:
            print(f"note: {note}", file=sys.stderr)


def emit_page(parsed: argparse.Namespace, text: str) -> None:
    """A report: to ``--out``, or to stdout for a pipe. Its notes stand in it."""
    write(parsed, text)
    if parsed.out and not parsed.quiet:
        print(f"the report is in {parsed.out}", file=sys.stderr)


def picture(parsed: argparse.Namespace, draw: Callable[[], Figure]) -> None:
    """Write the picture that ``--plot`` asks for; :func:`check_format` has looked at its name already."""
    if getattr(parsed, "plot", None):
        from selector.plots import save
        from selector.plots.style import ready
        from selector.watched import watched

        made: list[Figure] = []
        steps: list[Callable[[], None]] = [ready, lambda: made.append(draw()), lambda: save(made[0], parsed.plot)]
        for step in watched(steps):
            step()
        if not parsed.quiet:
            print(f"the picture is in {parsed.plot}", file=sys.stderr)


def drawn(draw: Callable[[Console], None], out: str | None) -> str | None:
    """Draw straight to the terminal; into text when the result goes to a file."""
    from rich.console import Console

    if out:
        import io

        page = Console(file=io.StringIO(), width=width_of_terminal() or 120, no_color=True, highlight=False)
        draw(page)
        return page.file.getvalue()  # type: ignore[attr-defined,no-any-return]
    draw(Console(highlight=False, width=width_of_terminal(), soft_wrap=False))
    return None


def width_of_terminal() -> int | None:
    """Columns: the terminal's, or 120 when output is piped and COLUMNS does not say otherwise."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return None
    return 120


def columns() -> int:
    """The same as a number."""
    import shutil

    return width_of_terminal() or shutil.get_terminal_size().columns


def write(parsed: argparse.Namespace, text: str | None) -> None:
    """Text to stdout, or to ``--out`` by way of a file beside it, so that an old file survives a failure."""
    if text is None:
        return
    if not parsed.out:
        sys.stdout.write(text)
        return
    beside = f"{parsed.out}.{os.getpid()}.part"
    try:
        with open(beside, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(beside, parsed.out)
    except OSError as error:
        if os.path.exists(beside):
            os.unlink(beside)
        raise InputError(f"--out {parsed.out} cannot be written: {error.strerror}") from None


def as_json(document: Mapping[str, Any]) -> str:
    """A line a key, and a line an element of a list: legible, and written by json's fast encoder."""
    import json

    def line(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n  " + ",\n  ".join(json.dumps(v, ensure_ascii=False) for v in value) + "\n ]"
        return json.dumps(value, ensure_ascii=False)

    return "{\n " + ",\n ".join(f"{json.dumps(k)}: {line(v)}" for k, v in document.items()) + "\n}\n"


def as_csv(rows: Rows) -> str:
    """Rows with a header line; nested values as compact JSON."""
    import csv
    import io

    page = io.StringIO()
    if rows:
        writer = csv.DictWriter(page, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return page.getvalue()


def as_markdown(rows: Rows) -> str:
    """Rows as a GitHub table; numbers to the right."""
    if not rows:
        return ""
    keys = list(rows[0])
    numeric = {k for k in keys if all(isinstance(r[k], int | float) for r in rows if r[k] is not None)}
    lines = ["| " + " | ".join(keys) + " |", "|" + "|".join("---:" if k in numeric else "---" for k in keys) + "|"]
    for row in rows:
        cells = ("" if row[k] is None else str(row[k]).replace("|", "\\|").replace("\n", " ") for k in keys)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
