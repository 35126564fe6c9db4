"""The generated reference is the one in the repository."""

from __future__ import annotations

from pathlib import Path

from selector.checks.reference import reference


def test_reference_is_current() -> None:
    file = Path(__file__).parents[2] / "docs" / "rules.md"
    assert file.read_text("utf-8") == reference(), "run: python -m selector.checks.reference > docs/rules.md"
