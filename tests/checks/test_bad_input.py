"""Whatever a file holds, ``check`` gives findings or one message: hypothesis, and mutated shipped configurations."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from estimators.errors import AdvisorError
from selector.checks import check_files
from selector.checks.machine import Machine
from tests.checks.test_shipped import ROWS

ODD = (None, True, 0, -1, 1e300, "auto", "true", [], [1], {}, {"a": 1}, "é" * 50, 2**70, "1e9", 0.5, [[{}]], "NO_SHARD")
KEYS = (
    "zero_optimization",
    "fsdp_config",
    "deepspeed_config",
    "optimizer",
    "bf16",
    "fsdp",
    "deepspeed",
    "num_processes",
)
TEXTS = ("{", "]", '"', ":", "&a ", "*a ", "!!python/object", "\n", "<<: *a\n", "1e999", "'''", "((((", "\\", "\x00")
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["auto", "cpu"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)


def survives(file: Path) -> None:
    with suppress(AdvisorError):
        check_files([file], machine=Machine())


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.dictionaries(st.sampled_from([*KEYS, "distributed_type", "fp16", "train_batch_size"]), VALUES, max_size=6)
)
def test_odd_values(data: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "odd.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    survives(file)


def mutated(data: Any, chance: random.Random) -> Any:
    if isinstance(data, list):
        return [mutated(item, chance) for item in data]
    if not isinstance(data, dict):
        return chance.choice(ODD) if chance.random() < 0.05 else data
    made: dict[str, Any] = {}
    for key, value in data.items():
        draw = chance.random()
        if draw < 0.1:
            made[key] = chance.choice(ODD)
        elif draw < 0.94:
            made[key if draw > 0.12 else key[:-1]] = mutated(value, chance)
    return made | ({chance.choice(KEYS): chance.choice(ODD)} if chance.random() < 0.1 else {})


@pytest.mark.parametrize("seed", range(10))
def test_mutated_files(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    for number in range(35):
        text = json.dumps(mutated(chance.choice(ROWS)["data"], chance), indent=1)
        if chance.random() < 0.4:
            at = chance.randrange(len(text))
            text = text[:at] + chance.choice(TEXTS) + text[at + chance.randrange(5) :]
        file = tmp_path / f"f{number}{chance.choice(['.json', '.yaml', '.cfg', '.py'])}"
        file.write_text(text, encoding="utf-8")
        survives(file)


@pytest.mark.parametrize("text", ["", "x = (", "def f(:", "\x00", "(" * 5000, "a = " + "-" * 9000 + "1", "é = 1"])
def test_scripts(text: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(text, encoding="utf-8")
    survives(file)


def test_the_fuzzing_command() -> None:
    """A sample of ``python benchmarks/fuzz.py``: no traceback, at most 20 ms a file."""
    program = Path(__file__).parents[2] / "benchmarks/fuzz.py"
    done = subprocess.run([sys.executable, program, "800", "7"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
