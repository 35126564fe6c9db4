"""Python source as a tree, in any thread."""

from __future__ import annotations

import ast
from threading import Lock

_ONE_AT_A_TIME = Lock()


def parsed(text: str | bytes) -> ast.Module:
    """``ast.parse``, one at a time: to CPython before 3.13 the depth of two parses in two threads is one number, and both
    may end in a SystemError (python/cpython issue 106905). Raises what ``ast.parse`` raises."""
    with _ONE_AT_A_TIME:
        return ast.parse(text)
