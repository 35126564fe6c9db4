"""The listing of ledgers: every model of the catalogue has one, and it says after what."""

from __future__ import annotations

import pytest

from estimators.activations.listing import ATTENTION, ledger_of
from estimators.model.catalogue import entries, spec_of
from estimators.values import replace


def test_every_model_of_the_catalogue_has_a_ledger() -> None:
    found = {entry.name: ledger_of(spec_of(entry)) for entry in entries()}
    assert {name: ledger.missing for name, ledger in found.items() if ledger.kernels != ATTENTION} == {}
    assert found["Llama-3.1-8B"].basis == "the real classes" and found["Baichuan-7B"].basis == "its nearest relative"


def test_a_block_without_one_says_so() -> None:
    model = spec_of(entries()[0])
    parts = tuple(replace(p, class_name="NobodysBlock") if p.is_block else p for p in model.parts)
    ledger = ledger_of(replace(model, parts=parts))
    assert ledger.kernels == () and "NobodysBlock" in ledger.missing and ledger.basis == "-"


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    from selector.cli import main

    assert main(["models", "falcon-7b", "--ledgers", "--format", "csv"]) == 0
    assert "Falcon-7B,falcon,FalconDecoderLayer,eager sdpa flash" in capsys.readouterr().out
