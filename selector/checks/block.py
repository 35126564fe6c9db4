"""A mapping of a configuration file, read by dotted paths that never raise; it knows where each value stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from estimators.readers.safe import Document
from estimators.values import dataclass, field
from selector.checks.finding import REMOVE, Edit, Hit

_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?\s*")
_TRUE = ("y", "yes", "t", "true", "on", "1")
_FALSE = ("n", "no", "f", "false", "off", "0")
NOWHERE = Document(Path(), {}, {})


@dataclass(frozen=True, slots=True)
class Block:
    """``data`` at ``path`` (with its trailing dot) of a document. An absent block is empty and false."""

    document: Document = NOWHERE
    data: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""

    def __bool__(self) -> bool:
        return bool(self.data)

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str) -> Any:
        """The value at a dotted path; None when anything on the way is absent or null."""
        value: Any = self.data
        for part in key.split("."):
            if not isinstance(value, Mapping):
                return None
            value = value.get(part)
        return value

    def first(self, *keys: str) -> str | None:
        """The first of ``keys`` that has a value."""
        return next((key for key in keys if self.get(key) is not None), None)

    def sub(self, key: str) -> Block:
        value = self.get(key)
        return Block(self.document, value, f"{self.path}{key}.") if isinstance(value, Mapping) else Block()

    def number(self, key: str) -> float | None:
        """A finite number, also one that is written as text."""
        return as_number(self.get(key))

    def whole(self, key: str) -> int | None:
        value = self.number(key)
        return int(value) if value is not None and float(value).is_integer() else None

    def word(self, key: str) -> str:
        """Text in lower case; empty for anything else."""
        value = self.get(key)
        return value.strip().lower() if isinstance(value, str) else ""

    def flag(self, key: str) -> bool | None:
        """A boolean, also one that is written as a word; None for anything else."""
        return as_flag(self.get(key))

    def line(self, key: str) -> int | None:
        """The line of a key, or of the nearest one above it."""
        path = self.path + key
        while path:
            if path in self.document.lines:
                return self.document.lines[path]
            path = path.rpartition(".")[0]
        return None

    def hit(self, key: str, message: str, *edits: Edit, fix: str = "", severity: str = "") -> Hit:
        """A finding at a key of this block."""
        file = self.document.path if self.document is not NOWHERE else None
        return Hit(file, self.path + key, self.line(key), message, fix, edits, severity)

    def put(self, key: str, value: Any) -> Edit:
        return Edit(self.document.path, self.path + key, value)

    def drop(self, key: str) -> Edit:
        return Edit(self.document.path, self.path + key, REMOVE)


def as_number(value: Any) -> float | None:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
        return None
    return value


def as_flag(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, str | int) and str(value).strip().lower() in _TRUE + _FALSE:
        return str(value).strip().lower() in _TRUE
    return None


def leaves(data: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested mappings that is not a mapping, with its dotted path."""
    pending = [(path, data)]
    while pending:
        prefix, mapping = pending.pop()
        for key, value in mapping.items():
            if isinstance(value, Mapping):
                pending.append((f"{prefix}{key}.", value))
            else:
                yield f"{prefix}{key}", value
