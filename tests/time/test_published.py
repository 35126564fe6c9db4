"""Published speed: the thresholds that the project states, from the command that prints them."""

from __future__ import annotations

import json

import pytest

from validate.speed import Report, document, main, report
from validate.speed_cases import DENSE, read_cases


@pytest.fixture(scope="module")
def found() -> Report:
    return report()


def test_dense_rows_with_one_model_size_held_out(found: Report) -> None:
    """At most 6 % mean and 12 % at the ninth tenth, at least 80 % of rows inside the band, better than the baseline."""
    held = found.headline
    assert held.n >= 70
    assert held.mape <= 0.06 and held.p90 <= 0.12 and held.in_band >= 0.80
    assert held.width < 0.40
    assert held.mape < 0.75 * found.headline_baseline.mape


def test_pairs_are_put_in_the_measured_order(found: Report) -> None:
    assert all(ranking.share >= 0.85 for ranking in found.rankings)
    assert sum(ranking.pairs for ranking in found.rankings) > 200


def test_other_classes_are_scored_apart(found: Report) -> None:
    names = {score.name for score in found.classes}
    assert {DENSE, "LoRA", "QLoRA", "ZeRO", "offload", "consumer cards", "mixture of experts"} <= names
    small = next(s for s in found.classes if s.name.endswith("below 1B"))
    assert small.mape <= 0.06  # never fitted


def test_every_row_is_scored_or_says_why_not(found: Report) -> None:
    assert sum(s.n for s in found.classes) + len(found.skipped) == sum(1 for _ in read_cases())
    assert all(why for _, why in found.skipped)


def test_json_and_tables(found: Report, capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    assert document(found)["schema"] == "dist-advisor/speed/1"
    assert main(["--format", "markdown"]) == 0
    assert "| class |" in capsys.readouterr().out


def test_a_file_of_ones_own(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    row = next(c.row for c in read_cases() if c.id == "mpt-005")
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert main(["--cases", str(file), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"][0]["n"] == 1


@pytest.mark.parametrize("text", ["not json", "", '{"measured": {}}', '{"id": "x", "measured": {"mfu": 0.4}}'])
def test_a_file_that_cannot_be_scored(text: str, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "bad.jsonl"
    file.write_text(text, encoding="utf-8")
    assert main(["--cases", str(file)]) == 2
    assert "bad.jsonl" in capsys.readouterr().err
