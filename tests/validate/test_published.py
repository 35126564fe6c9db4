"""Published memory cases: errors no worse than they are, better than naive baselines, in the contract's JSON."""

from __future__ import annotations

import gc
import json
import time
from typing import Any

import pytest

from estimators.memory import Estimate
from selector import trust
from validate.published import TRUST, as_json, evaluate, main, quantile, trust_rows
from validate.published_cases import SET_ASIDE, MemoryCase, read
from validate.released import versions_at

# Present errors, rounded up; they only ever go down. Of a bias what cancelled may be gone: two rows of GPT-2 XL were 18 and
# 24 % high and are 2 and 8 %, so that what is low in litgpt's QLoRA weighs more; a head that lets its input go, as the real
# one does, took another 0.1 %.
MAPE = {"allocated": 0.07, "reserved": 0.15, "process": 0.125}
BIAS = {"allocated": 0.042, "reserved": 0.112, "process": 0.031}
FAILURES_MISSED, RUNS_REFUSED, TIGHT = 5, 3, 9


@pytest.fixture(scope="module")
def report() -> Any:
    return evaluate(read())


@pytest.fixture(scope="module")
def found(report: Any) -> dict[str, Any]:
    return as_json(report)


@pytest.mark.parametrize("quantity", list(MAPE))
def test_errors_do_not_grow(found: dict[str, Any], quantity: str) -> None:
    score = found["by_quantity"][quantity]
    assert score["mape"] <= MAPE[quantity]
    assert abs(score["bias"]) <= BIAS[quantity]


def test_verdicts_do_not_get_worse(found: dict[str, Any]) -> None:
    judged = found["verdicts"]
    assert judged["failures"] - judged["failures recognised"] <= FAILURES_MISSED
    assert judged["runs refused"] <= RUNS_REFUSED
    assert judged["tight"] <= TIGHT


def test_better_than_a_pocket_calculator(found: dict[str, Any]) -> None:
    for baseline in found["baselines"].values():
        assert found["by_quantity"]["allocated"]["mape"] < baseline["allocated"]["mape"] / 2
        assert found["verdicts"]["failures recognised"] > baseline["verdicts"]["failures recognised"]


def test_json_is_the_contract(found: dict[str, Any]) -> None:
    assert found["schema"] == "dist-advisor/accuracy/1"
    assert {"groups", "cases", "scored", "skipped", "by_quantity", "verdicts", "baselines", "rows"} <= found.keys()
    assert {"right", "wrong", "unknown"} <= found["verdicts"].keys()
    assert {"n", "mape", "bias", "p90", "worst"} <= found["by_quantity"]["allocated"].keys()
    assert {"id", "quantity", "predicted", "measured", "error"} <= found["rows"][0].keys()
    assert found["cases"] == found["scored"] + len(found["skipped"])
    json.dumps(found)


def test_few_rows_are_set_aside() -> None:
    assert len(SET_ASIDE) <= 0.03 * sum(1 for _ in read())


def test_the_file_of_trust_is_what_the_command_writes(report: Any) -> None:
    written = json.loads(TRUST.read_text(encoding="utf-8"))
    now = {(r["engine"], r["method"], r["stack"]): r["p90"] for r in trust_rows(report)}
    for row in written["rows"]:
        assert now[row["engine"], row["method"], row["stack"]] <= row["p90"] + 0.02
    assert trust.table() or str(TRUST) != trust.FILE


def test_a_case_takes_no_time() -> None:
    cases = [case for case in read() if case.counts and not case.obstacle()]
    gc.collect()
    gc.freeze()  # what other tests left in this process is not looked through again and again
    try:
        began = time.process_time()
        for case in cases:
            _ = Estimate(case.run).gpu
        spent = time.process_time() - began
    finally:
        gc.unfreeze()
    assert spent / len(cases) < 0.02


def test_a_row_without_versions_has_those_of_its_day() -> None:
    assert versions_at("2024-10", {})["transformers"] == "4.43.0"
    assert versions_at("2025-03-01", {"transformers": "4.40.0"})["transformers"] == "4.40.0"
    assert versions_at("2024-09", {}, "litgpt")["bitsandbytes"] == "0.42.0"
    assert versions_at(None, {}) == {}


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    rows = [c.row for c in read() if c.group == "fms-Mistral-7B-lora"]
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(json.dumps(r) for r in rows), encoding="utf-8")
    assert main(["--cases", str(file), "--format", "markdown"]) == 0
    assert "| all | allocated |" in capsys.readouterr().out
    assert main(["--cases", str(tmp_path / "absent")]) == 2


def test_inputs_of_frozen_blocks_stay_under_fsdp1() -> None:
    """fmslg-032: without them the estimate is 16 GiB, one copy of the block inputs, too low."""
    case = next(c for c in read() if c.id == "fmslg-032")
    assert isinstance(case, MemoryCase)
    names = {t.name for t in case.estimate.peak.terms}
    assert "inputs of blocks that are done" in names
    assert abs(case.estimate.gpu.allocated.expected / 2**30 / case.measured["allocated"] - 1) < 0.02


def test_quantile() -> None:
    assert quantile([3, 1, 2], 0.9) == 3
    assert quantile(range(1, 11), 0.9) == 10
