"""``--help`` that stays legible: examples longer than a line go on in the next, as a shell takes them."""

from __future__ import annotations

import argparse
import os
import sys


class Help(argparse.RawDescriptionHelpFormatter):
    """Text as it was written; lines of examples are folded before a flag."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=columns() - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for whole in text.splitlines() for line in folded(whole, width))


def columns() -> int:
    """The terminal's width as ``shutil.get_terminal_size`` finds it: argparse asks for every flag, and that module is
    slow to import."""
    try:
        given = int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        given = 0
    if given > 0:
        return given
    try:
        return os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else -1).columns or 80
    except (AttributeError, ValueError, OSError):
        return 80


def folded(line: str, width: int) -> list[str]:
    """A command line in pieces of at most ``width`` columns, joined by backslashes; a sentence in lines.

    >>> folded("  dist-advisor fit --model llama-8b --gpus 8xH100", 40)
    ['  dist-advisor fit --model llama-8b \\\\', '      --gpus 8xH100']
    """
    if not line.lstrip().startswith("dist-advisor "):
        import textwrap

        return textwrap.wrap(line, width, subsequent_indent=" " * (len(line) - len(line.lstrip()))) or [""]
    found = []
    while len(line) > width:
        at = line.rfind(" --", 8, width - 2)
        if at <= 8:
            break
        found.append(line[:at] + " \\")
        line = "      " + line[at + 1 :]
    return [*found, line]


def synopsis(command: argparse.ArgumentParser) -> str:
    """One line: the program, what must be given, and that there are options."""
    words = [command.prog]
    for action in command._actions:
        shown = action.metavar or action.dest
        if not action.option_strings:
            words.append(f"{shown} ..." if action.nargs == "+" else f"[{shown}]" if action.nargs == "?" else str(shown))
        elif action.required:
            words.append(f"{action.option_strings[0]} {shown}")
    return " ".join([*words, "[options]"])


def wrapped(text: str, width: int) -> str:
    """Lines folded at ``width`` columns, two deeper than they began; a Chinese character counts as two."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    console = Console(width=width)
    lines: list[str] = []
    for line in text.splitlines():
        if cell_len(line) <= width:
            lines.append(line)
            continue
        pad = " " * (len(line) - len(line.lstrip()))
        first, *rest = Text(line.strip()).wrap(console, width - len(pad) - 2)
        lines += [pad + first.plain.rstrip(), *(f"{pad}  {piece.plain.strip()}" for piece in rest)]
    return "\n".join(lines) + "\n"
