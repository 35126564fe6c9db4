"""Stored rows are what the real engines do: some are measured again, other ones for every commit."""

from __future__ import annotations

import pytest

from validate.evidence.again import ROWS, chosen, commit, differences, measured_again
from validate.evidence.store import rows


def test_rows_are_chosen_by_the_commit() -> None:
    first, same, other = (chosen(rows(), seed) for seed in ("a", "a", "b"))
    assert first == same and 0 < len(first) <= ROWS
    assert [row["id"] for row in first] != [row["id"] for row in other]


def test_another_amount_is_seen() -> None:
    row = rows()[0]
    gpu = row["instants"]["step"]["gpu"]
    now = {"instants": {**row["instants"], "step": {"gpu": {**gpu, "params": gpu["params"] + 1}, "host": {}}}}
    assert len(differences(row, row)) == 0 and len(differences(row, now)) == 1


def test_rows_measure_as_they_are_stored() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    assert measured_again(chosen(rows(), commit())) == []
