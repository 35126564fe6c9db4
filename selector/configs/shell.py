"""Text for a POSIX shell."""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote


def line(words: Iterable[object]) -> str:
    """A command, each word quoted where it must be."""
    return " ".join(quote(str(word)) for word in words)


def continued(words: Iterable[object], indent: str = "    ") -> str:
    """A command over several lines: an option stands with its value, everything else alone."""
    first, *rest = map(str, words)
    rows = [[first]]
    for word in rest:
        open_option = rows[-1][-1].startswith("--") and len(rows[-1]) == 1 and "=" not in rows[-1][-1]
        if open_option and not word.startswith("--") and rows[-1][0] not in SWITCHES:
            rows[-1].append(word)
        elif len(rows) == 1 and not word.startswith("--") and not word.endswith((".py", ".yaml")):
            rows[-1].append(word)  # the subcommand: accelerate launch
        else:
            rows.append([word])
    return f" \\\n{indent}".join(line(row) for row in rows)


SWITCHES = ("--standalone", "--no_local_rank")  # options without a value
