"""Blocks that ZeRO-3's coordinator meets in the same state are replayed once: nothing may differ from replaying all."""

from __future__ import annotations

from itertools import product

import pytest

from estimators.engines.zero_coordinator import Setting
from estimators.engines.zero_fetch import fetched
from estimators.engines.zero_modules import modules
from estimators.memory import resolve

ALL = 1 << 60
SETTINGS = {
    "auto": Setting(15_099_494, 10**9, 10**9, 40_960, ALL, 4096**2, True, True),
    "defaults": Setting(50_000_000, 10**9, 10**9, 100_000, ALL, 500_000_000, True, True),
    "kept near": Setting(10_000_000, 10**8, 2 * 10**9, 100_000, ALL, 10_000_000, True, False),
    "small ones end": Setting(50_000_000, 10**9, 0, 100_000, 10**5, 3_000_000, False, True),
    "second micro-step": Setting(200_000_000, 10**9, 3 * 10**8, 10_000, ALL, 200_000_000, True, True, 1, True),
    "hpZ": Setting(50_000_000, 10**9, 10**9, 100_000, ALL, 500_000_000, True, True, 4),
}


@pytest.mark.parametrize("model", ["llama-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_as_if_every_block_were_replayed(model: str, method: str) -> None:
    trained = resolve(model, "4xA10", "zero3", method=method).model
    for name, setting in SETTINGS.items():
        assert fetched(trained, setting) == fetched(trained, setting, False), name


@pytest.mark.parametrize("model", ["llama-8b", "gemma-2-9b", "t5-large", "deepseek-v3", "llava-1.5-7b"])
def test_rounds_are_all_calls(model: str) -> None:
    spec = resolve(model, "8xH100", "zero3").model
    for recompute in (True, False):
        folded, whole = modules(spec, recompute), modules(spec, recompute, False)
        found = [
            (call.kind, call.phase, tuple(i + time * r.shift for i in call.owned), call.spot and call.spot[1] + time * r.step)
            for r in folded.rounds
            for time, call in product(range(r.times), r.calls)
        ]  # fmt: skip
        assert found == [(c.kind, c.phase, c.owned, c.spot and c.spot[1]) for r in whole.rounds for c in r.calls]
        assert folded.numels == whole.numels and folded.trains == whole.trains


@pytest.mark.parametrize("method", ["full", "lora"])
def test_modules_without_parameters_are_called_behind_adapters_too(method: str) -> None:
    """GPT-2's activation and dropout are places to prefetch at, whatever the layer in front is made of."""
    calls = [c for r in modules(resolve("gpt2", "2xH100", "zero3", method=method).model, False).rounds for c in r.calls]
    paths = [
        c.path for c in calls if c.kind == "fetch" and c.phase == "forward" and c.path.startswith("transformer.h.1.mlp")
    ]
    order = [paths.index(f"transformer.h.1.{name}") for name in ("mlp.c_fc", "mlp.act", "mlp.c_proj", "mlp.dropout")
             if f"transformer.h.1.{name}" in paths]  # fmt: skip
    assert len(order) >= 3 and order == sorted(order) and paths[-1].endswith("mlp.dropout")
