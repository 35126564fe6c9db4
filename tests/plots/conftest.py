"""Estimates that several pictures are drawn from."""

from __future__ import annotations

import pytest

from estimators import estimate
from estimators.memory import Estimate, estimate_all
from selector.report.text import by_verdict


@pytest.fixture(scope="session")
def over_the_card() -> Estimate:
    return estimate("llama-8b", "4xA10", "zero3")


@pytest.fixture(scope="session")
def many() -> list[Estimate]:
    return by_verdict(estimate_all("llama-8b", "4xA10", everything=True)[0])
