"""What a check says: hits of rules, and findings, which are hits with the rule's own words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from estimators.values import dataclass

REMOVE = object()  # the value of an edit that takes a key away


@dataclass(frozen=True, slots=True)
class Edit:
    """A change that mends a finding: the dotted path of a key in its file, and the value that it gets."""

    file: Path
    path: str
    value: Any


@dataclass(frozen=True, slots=True)
class Hit:
    """A rule that fired: where, what with the user's numbers, and the edits that mend it."""

    file: Path | None
    where: str
    line: int | None
    message: str
    fix: str = ""  # in place of the rule's own
    edits: tuple[Edit, ...] = ()
    severity: str = ""  # in place of the rule's own
    suggestions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    rule: str
    severity: str
    file: str
    where: str
    line: int | None
    message: str
    fix: str
    source: str
    suggestions: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()

    def as_dict(self) -> Mapping[str, Any]:
        """The JSON of the contract, with line and suggestions beside it."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "file": self.file,
            "where": self.where,
            "line": self.line,
            "message": self.message,
            "fix": self.fix,
            "source": self.source,
            "suggestions": list(self.suggestions),
        }
