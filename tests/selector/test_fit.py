"""Bisection against trying every value; the fewest GPUs; the command."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators import IllegalCombination, estimate, parse_cluster, resolve_model
from selector.cli import main
from selector.fit import fewest, fit, largest, limit
from selector.near import spelled


def step_at(limit: int) -> Any:
    """An estimator of which values up to ``limit`` fit."""
    return lambda value: SimpleNamespace(verdict="fits" if value <= limit else "no")


@given(limit=st.integers(0, 300), most=st.integers(1, 256), start=st.integers(1, 400))
def test_largest_is_what_trying_all_finds(limit: int, most: int, start: int) -> None:
    every = [v for v in range(1, most + 1) if v <= limit]
    assert largest(step_at(limit), most, start) == (max(every) if every else None)


def test_largest_asks_few_times() -> None:
    asked: list[int] = []

    def at(value: int) -> Any:
        asked.append(value)
        return step_at(777_777)(value)

    assert largest(at, 2**24) == 777_777
    assert len(asked) < 50


@pytest.mark.parametrize("strategy", ["zero3", "fsdp-full-shard", "ddp", "zero2+optimizer@cpu"])
def test_against_the_estimator_itself(strategy: str) -> None:
    model, cluster = resolve_model("llama-3.2-1b"), parse_cluster("4xA10")
    found, _ = fit(model, cluster, [strategy], count=False, checkpointing="full", seq_len=2048)
    batch = found[0].micro_batch

    def verdict(**fields: Any) -> str:
        return estimate(model, cluster, strategy, **{"checkpointing": "full", "seq_len": 2048, **fields}).verdict

    if batch is None:
        assert verdict(micro_batch=1) != "fits"
        return
    tried = range(1, min(batch, 64) + 1)
    assert all(verdict(micro_batch=n) == "fits" for n in tried)
    if batch < 2**16:
        assert all(verdict(micro_batch=batch + n) != "fits" for n in (1, 2, 7, batch))
        assert found[0].limited_by and "GPU at" in found[0].limited_by
    tokens = found[0].seq_len
    assert tokens is not None and verdict(seq_len=tokens) == "fits"
    if tokens < 2**24:
        assert verdict(seq_len=tokens + 1) != "fits"


@pytest.mark.parametrize("strategy", ["zero3", "zero1", "fsdp-full-shard", "ddp", "single"])
@pytest.mark.parametrize("model", ["llama-3.2-1b", "llama-8b", "llama-70b"])
def test_fewest_is_what_counting_finds(model: str, strategy: str) -> None:
    spec, card = resolve_model(model), parse_cluster("A100-80GB")
    found = fewest(spec, card, _strategy(strategy), {})
    counts = [n for n in (*range(1, 9), *range(16, 129, 8)) if strategy == "single" or n > 1]
    works = []
    for n in counts[: 1 if strategy == "single" else None]:
        text = f"{n}xA100-80GB" if n <= 8 else f"{n // 8}x8xA100-80GB"
        if estimate(spec, text, strategy).verdict == "fits":
            works.append(n)
    if found is None or found > 128:
        assert not works
    else:
        assert found == works[0]


def _strategy(name: str) -> Any:
    from estimators import parse_strategy

    return parse_strategy(name)


def test_replicated_is_not_helped_by_more() -> None:
    found, _ = fit(resolve_model("llama-70b"), parse_cluster("A100-80GB"), ["ddp"], sizes=False)
    assert found[0].fewest_gpus is None and found[0].limited_by and found[0].limited_by.startswith("GPU at")


def test_limit_says_what_is_missing() -> None:
    assert limit(None) is None
    host = estimate("llama-8b", parse_cluster("2xA10", host_memory="32GB"), "zero3-offload")
    assert limit(host) == "host RAM"


def test_spelling() -> None:
    for text in ("1xA10", "8xA100-80GB", "2x8xH100"):
        assert spelled(parse_cluster(text)) == text


def test_named_strategy_that_is_illegal_raises() -> None:
    with pytest.raises(IllegalCombination, match="single is one GPU"):
        fit(resolve_model("llama-8b"), parse_cluster("8xA100-80GB"), ["single"])


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--model", "llama-8b", "--gpus", "8xA100-80GB", "--strategy", "zero3", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "dist-advisor/fit/1"
    row = document["strategies"][0]
    assert set(row) == {"strategy", "micro_batch", "seq_len", "fewest_gpus", "limited_by", "tokens_per_s_per_gpu"}
    assert row["micro_batch"] >= 1 and row["seq_len"] >= 2048 and 2 <= row["fewest_gpus"] <= 8


def test_command_counts_a_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--model", "llama-3.2-1b", "--gpu", "A10", "--format", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "strategy,micro_batch,seq_len,fewest_gpus,tokens_per_s_per_gpu,limited_by" and len(lines) > 10
    assert main(["fit", "--model", "llama-3.2-1b", "--gpus", "2xA10", "--strategy", "ddp"]) == 0
    assert "fewest GPUs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--gpus", "8xA10", "--gpu", "A10"], 2, "one of the two"),
        ([], 2, "one of the two"),
        (["--gpu", "8xA10"], 2, "names a cluster"),
        (["--gpus", "A10", "--strategy", "ddp", "--require-fit", "--host-memory", "1GB"], 1, ""),
    ],
)
def test_command_statuses(arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--model", "llama-8b", *arguments]) == status
    assert message in capsys.readouterr().err
