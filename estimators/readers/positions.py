"""The line on which each key of a JSON text stands, and the first key that stands twice.

``json`` drops positions and keeps the last of two equal keys; this walks the tokens of a text that ``json`` has
accepted, so it need not check the grammar again.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]')


class Duplicate(Exception):
    """Two equal keys in one object."""

    def __init__(self, where: str, line: int) -> None:
        super().__init__(where)
        self.where, self.line = where, line


def key_lines(text: str) -> dict[str, int]:
    """Dotted key path -> line, counted from 1; members of a list have its index as a key. Raises ``Duplicate``."""
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    lines: dict[str, int] = {}
    paths: list[str] = [""]  # of the open containers, each with its trailing dot
    members: list[int | None] = [None]  # index in a list, None in an object
    seen: list[set[str]] = [set()]
    key, pending, pending_at = "", "", 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token[0] == '"':
            pending, pending_at = token, match.start()
        elif token == ":":
            key = json.loads(pending)
            where, line = paths[-1] + key, bisect_right(starts, pending_at)
            if key in seen[-1]:
                raise Duplicate(where, line)
            seen[-1].add(key)
            lines[where] = line
        elif token in "{[":
            index = members[-1]
            inside = key if index is None else str(index)
            paths.append(f"{paths[-1]}{inside}." if len(paths) > 1 else "")
            members.append(0 if token == "[" else None)
            seen.append(set())
        elif token in "}]":
            paths.pop()
            members.pop()
            seen.pop()
        elif token == "," and members[-1] is not None:
            members[-1] += 1
    return lines
