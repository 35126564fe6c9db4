"""The table of constants is well formed, and every formula that code names stands in the page."""

from __future__ import annotations

import re
from pathlib import Path

from estimators.time import constants
from estimators.time.constants import Constant

ROOT = Path(__file__).resolve().parent.parent.parent
FORMULA = re.compile(r"\b[TVNSOCM]\.\d+\b")


def every() -> dict[str, Constant]:
    found: dict[str, Constant] = {}
    for name, value in vars(constants).items():
        if isinstance(value, Constant):
            found[name] = value
        elif isinstance(value, dict):
            found |= {f"{name}[{k}]": v for k, v in value.items() if isinstance(v, Constant)}
    return found


def test_each_has_a_unit_a_source_and_a_range() -> None:
    assert len(every()) > 40
    for name, constant in every().items():
        assert constant.low <= constant.value <= constant.high, name
        assert constant.unit and len(constant.source) > 5, name
        if constant.fit:
            assert constant.fit.n > 0 and constant.fit.error < 0.5 and re.fullmatch(r"\d{4}-\d\d", constant.fit.date), (
                name
            )


def test_no_constant_belongs_to_a_model() -> None:
    assert not [name for name in every() if re.search(r"llama|qwen|mpt|mistral|gemma|gpt2", name, re.IGNORECASE)]


def test_formulas_that_code_names_are_derived_in_the_page() -> None:
    page = set(FORMULA.findall((ROOT / "docs" / "formulas-time.md").read_text(encoding="utf-8")))
    named = {
        n for file in (ROOT / "estimators" / "time").glob("*.py") for n in FORMULA.findall(file.read_text("utf-8"))
    }
    assert named and named <= page, sorted(named - page)
