"""Shared by the tests of selector: every verdict is judged, also while terms are still being added."""

from __future__ import annotations

import pytest

from estimators import memory


@pytest.fixture(autouse=True)
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing counts as not yet counted: verdicts are fits, tight or no."""
    if hasattr(memory, "NOT_COUNTED"):
        monkeypatch.setattr(memory, "NOT_COUNTED", ())
