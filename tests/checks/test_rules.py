"""Every rule fires on one case and is silent on another; the collected list is complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from estimators.cluster import parse_cluster
from selector.checks import Finding
from selector.checks.registry import RULES, SEVERITIES
from selector.checks.rules import BESIDE, SECTIONS
from selector.chinese import chinese
from tests.checks import cases_deepspeed, cases_fsdp, cases_hugging_face, cases_others
from tests.checks.building import found
from tests.checks.names import NAMES

CASES = {**cases_deepspeed.CASES, **cases_hugging_face.CASES, **cases_fsdp.CASES, **cases_others.CASES}
# a name or value that is the same in every language: a package and its version, a key and its value, a command
NAME = re.compile(r"|\S+|(torch|accelerate) [\d.]+|\"?\w+\"?: \"?\w+\"?|\{.*\}|accelerate launch .*")
FACTS = ("gpu_memory", "host_memory", "nvme", "network", "interconnect")


def fired(folder: Path, case: tuple[Any, dict[str, Any]]) -> list[Finding]:
    parts, known = case
    known = dict(known)
    facts = {k: known.pop(k) for k in FACTS if k in known}
    if "cluster" in known:
        known["cluster"] = parse_cluster(known["cluster"], **facts)
    parts = tuple((name, text.replace("RESUME", str(folder / "checkpoint"))) for name, text in parts)
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    for rank in range(2):
        (checkpoint / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    return list(found(folder, parts, **known))


@pytest.mark.parametrize("name", sorted(CASES))
def test_fires_and_is_silent(name: str, tmp_path: Path) -> None:
    if name == "ds-auto-hidden-size":
        pytest.skip("needs a model without a hidden size: see test_hidden_size")
    fires, silent = CASES[name]
    said = fired(tmp_path, fires)
    assert name in {finding.rule for finding in said}
    other = tmp_path / "silent"
    other.mkdir()
    more = fired(other, silent)
    assert name not in {finding.rule for finding in more}
    words = {text for finding in (*said, *more) for text in (finding.message, finding.fix)}
    assert [text for text in words if not NAME.fullmatch(text) and chinese(text) is None] == []


def test_what_mends_a_rule_has_its_chinese() -> None:
    assert [rule.fix for rule in RULES.values() if not NAME.fullmatch(rule.fix) and chinese(rule.fix) is None] == []


def test_every_rule_has_cases() -> None:
    assert set(CASES) == set(RULES)


def test_the_collected_rules_are_all_there() -> None:
    assert len(NAMES) == len(set(NAMES)) == 144
    assert set(RULES) - set(NAMES) == {"does-not-fit"} <= set(BESIDE)
    assert set(NAMES) <= set(RULES)


def test_what_a_rule_says_of_itself() -> None:
    modules = [module.__name__.rpartition(".")[2] for group in SECTIONS.values() for module in group]
    for rule in RULES.values():
        assert rule.severity in SEVERITIES and rule.section in modules
        assert rule.trigger.endswith((".", ")")) and rule.fix and rule.source
        assert rule.confirmed in ("run", "source", "thread", "count")


def test_hidden_size() -> None:
    from dataclasses import replace

    from estimators.model import resolve_model
    from selector.checks.block import Block
    from selector.checks.setup import Setup

    ds = Block(data={"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}})
    bare = replace(resolve_model("llama-8b"), config={})
    assert [hit.where for hit in RULES["ds-auto-hidden-size"].function(Setup(ds=ds, model=bare))]
    assert not list(RULES["ds-auto-hidden-size"].function(Setup(ds=ds, model=resolve_model("llama-8b"))))
