"""What would lower the peak: each lever is a real difference of estimates, and runs that were measured both ways agree."""

from __future__ import annotations

import json
from typing import Any

import pytest

from estimators import estimate, resolve_model
from selector.cli import main
from selector.levers import Lever, levers
from validate.published_cases import MemoryCase, read

CASES = {case.id: case for case in read(None)}
FIELDS = ("checkpointing", "loss", "optimizer", "micro_batch", "grad_accum")


def pulled(case: MemoryCase, says: str) -> Lever:
    found = case.estimate
    model = resolve_model(case.row["model"]["config"] or case.row["model"]["name"])
    return next(lever for lever in levers(found, model) if lever.says == says)


# Before, after, the lever, how far the predicted saving may be from the measured one: rows of one source that differ in
# that alone. The last three are off for what is off in their rows (docs/accuracy.md), not for the lever's arithmetic.
PAIRS = [
    ("gist-001", "gist-002", "full checkpointing", 0.08),
    ("liger-007", "liger-008", "a fused loss", 0.08),
    ("liger-009", "liger-010", "a fused loss", 0.08),
    ("gist-006", "gist-007", "the optimizer in host RAM", 0.02),
    ("hfdoc-001", "hfdoc-008", "8-bit optimizer states", 0.10),
    ("fms-020", "fms-018", "micro-batch 4 x accumulation 2", 0.02),
    ("fmslg-013", "fmslg-012", "micro-batch 4 x accumulation 2", 0.02),
    ("gist-005", "gist-006", "full checkpointing", 0.25),
    ("liger-001", "liger-002", "a fused loss", 0.65),
    ("fmsgr-003", "fmsgr-001", "micro-batch 4 x accumulation 2", 0.50),
]


@pytest.mark.parametrize(("before", "after", "says", "off"), PAIRS, ids=[f"{p[0]}-{p[2].split()[-1]}" for p in PAIRS])
def test_measured_savings(before: str, after: str, says: str, off: float) -> None:
    measured = {}
    for name in (before, after):
        found = CASES[name].row["measured"]
        measured[name] = found.get("allocated_gib") or found["process_gib"]
    saved = (measured[before] - measured[after]) * 2**30
    assert pulled(CASES[before], says).saved_bytes == pytest.approx(saved, rel=off)


@pytest.mark.parametrize(
    ("model", "gpus", "strategy", "fields"),
    [
        ("llama-8b", "4xA100-80GB", "zero2", {"micro_batch": 4}),
        ("llama-8b", "8xA100-80GB", "zero3", {"checkpointing": "none", "micro_batch": 3}),
        ("llama-8b", "8xA100-80GB", "fsdp-full-shard", {"attention": "eager", "grad_accum": 4, "stack": "torch"}),
        ("llama-3.2-1b", "8xA10", "ddp", {"optimizer": "adamw"}),
        ("llama-70b", "8xA100-80GB", "zero3+optimizer@cpu", {"method": "lora", "loss": "chunked"}),
    ],
)
def test_every_lever_is_a_difference_of_two_estimates(
    model: str, gpus: str, strategy: str, fields: dict[str, Any]
) -> None:
    before = estimate(model, gpus, strategy, **fields)
    made = levers(before, resolve_model(model))
    assert made and [lever.saved_bytes for lever in made] == sorted((m.saved_bytes for m in made), reverse=True)
    for lever in made:
        after = estimate(model, gpus, lever.strategy, **{**fields, **lever.changes})
        assert after.peak.gpu_bytes == before.peak.gpu_bytes - lever.saved_bytes
        assert after[before.peak.name].gpu_bytes == before.peak.gpu_bytes - lever.instant_bytes
        one, other = before.run.workload, after.run.workload
        assert one.seq_len == other.seq_len and one.method == other.method
        assert one.micro_batch * one.grad_accum == other.micro_batch * other.grad_accum


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--model", "llama-8b", "--gpus", "4xA100-80GB", "--micro-batch", "4", "-q"]
    assert main(["estimate", *asked, "--strategy", "zero2"]) == 0
    shown = capsys.readouterr().out
    assert "zero2: step binds at" in shown and "8-bit optimizer states" in shown
    assert main(["estimate", *asked, "--strategy", "zero2", "--strategy", "zero3", "--levers", "--format", "json"]) == 0
    for one in json.loads(capsys.readouterr().out)["estimates"]:
        assert {"says", "strategy", "changes", "saved_bytes", "instant_bytes", "peak_bytes", "verdict"} <= set(
            one["levers"][0]
        )
    assert main(["estimate", *asked, "--format", "json"]) == 0
    assert {e["levers"] for e in json.loads(capsys.readouterr().out)["estimates"]} == {None}
    assert main(["explain", *asked, "zero2"]) == 0
    assert "what would lower it most" in capsys.readouterr().out


def test_flash_is_the_lever_where_transformers_has_no_sdpa() -> None:
    model = resolve_model("gemma-2-9b")
    found = estimate(model, "8xA100-80GB", "zero3", checkpointing="none")
    assert any("has no sdpa for gemma2" in note for note in found.notes)
    lever = next(lever for lever in levers(found, model) if lever.says == "flash attention in place of eager")
    scores = 16 * 2048 * 2048 * 2 * 42  # heads, tokens squared, bf16, blocks
    assert lever.saved_bytes > scores
