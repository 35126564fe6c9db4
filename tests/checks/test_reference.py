"""The generated reference is the one in the repository."""

from __future__ import annotations

from pathlib import Path

from selector.checks.reference import reference
from selector.checks.rules import RULES


def test_reference_is_current() -> None:
    file = Path(__file__).parents[2] / "docs" / "rules.md"
    assert file.read_text("utf-8") == reference(), "run: python -m selector.checks.reference > docs/rules.md"


def test_what_is_said_to_be_run_is_run() -> None:
    """Each rule that claims a test on an installed engine is named in one."""
    texts = [file.read_text("utf-8") for file in Path(__file__).parent.glob("test_confirmed*.py")]
    missing = {r.name for r in RULES.values() if r.confirmed == "run" and not any(f"{r.name}" in t for t in texts)}
    assert not missing
