"""``plan``: what it sweeps, where it says adding stops paying, deadlines, budgets, model parallel layouts, errors."""

from __future__ import annotations

import csv
import doctest
import importlib
import io
import json
import time
from typing import Any

import pytest

from estimators.cluster import parse_cluster
from estimators.errors import NotModelled
from estimators.model import resolve_model
from estimators.time.model_parallel import activation_bytes, hiding_tokens, layouts, state_bytes
from selector.cli import main
from selector.plan import Plan, Question, counts_up_to, plan

FSDP = ("ddp", "fsdp-full-shard", "fsdp-shard-grad-op", "fsdp-hybrid-shard")


def asked(model: str = "llama-8b", card: str = "8xH100", most: int = 1024, **changes: Any) -> Plan:
    fields = {"seq_len": 4096, "stack": "torch", **changes.pop("fields", {})}
    facts = {"price": 2.5, "network": 400, **changes.pop("facts", {})}
    values = {"tokens": 1e12, "sequences": 1024, "counts": counts_up_to(most, 8), "strategies": FSDP, **changes}
    return plan(Question(resolve_model(model), parse_cluster(card, **facts), fields=fields, **values))


@pytest.fixture(scope="module")
def usual() -> Plan:
    return asked()


def test_more_gpus_are_never_slower_and_never_cheaper_than_the_best(usual: Plan) -> None:
    days = [p.cost.days.expected for p in usual.points]
    assert days == sorted(days, reverse=True)
    assert max(usual.efficiency(p) for p in usual.points) == 1.0
    assert all(p.cost.money and p.cost.energy_kwh and p.cost.days.low <= p.cost.days.high for p in usual.points)


def test_every_point_keeps_the_global_batch(usual: Plan) -> None:
    for p in usual.points:
        load = p.run.workload
        assert load.micro_batch * load.grad_accum * p.gpus == pytest.approx(1024, rel=0.15)


def test_deadline_and_budget(usual: Plan) -> None:
    in_time = usual.meets(30 * 86400)
    assert in_time is not None and in_time.cost.days.expected <= 30
    assert all(p.cost.days.expected > 30 for p in usual.points if p.gpus < in_time.gpus)
    cheapest = min(p.cost.money or 0 for p in usual.points)
    assert usual.within(cheapest * 0.5) is None
    paid = usual.within(cheapest * 1.2)
    assert paid is not None and (paid.cost.money or 0) <= cheapest * 1.2


def test_a_thin_network_moves_the_knee_down() -> None:
    good, thin = asked(), asked(facts={"network": 12})
    assert good.knee is not None and thin.knee is not None
    assert thin.knee.gpus < good.knee.gpus
    assert "network" in thin.why


def test_a_spent_batch_is_named_as_the_limit() -> None:
    found = asked(sequences=32, most=64)
    assert max(p.gpus for p in found.points) == 32
    assert found.beyond is not None and found.beyond > 32


def test_beyond_data_parallelism_a_layout_is_offered() -> None:
    found = asked(facts={"network": 12}, sequences=2048, most=2048)
    assert found.beyond is not None
    layout = found.layout
    assert layout is not None and layout.tensor * layout.pipeline > 1
    assert layout.total_bytes < 80 * 2**30
    assert layout.tensor * layout.pipeline * layout.data == found.beyond


def test_published_limits_of_data_parallelism() -> None:
    """Tokens that hide the gathers, beside the rows that performance.md derives; the playbook's 512 GPUs at 1M tokens."""
    for usable, adapters, tokens in (
        (271e12, 160e9, 1_700),
        (271e12, 40e9, 6_800),
        (794.5e12, 320e9, 2_500),
        (794.5e12, 80e9, 9_900),
    ):
        assert hiding_tokens(usable, adapters) == pytest.approx(tokens, rel=0.02)
    found = asked("llama-70b", sequences=1024, strategies=("zero3", "fsdp-full-shard"), fields={"seq_len": 1024})
    limit = next(one for one in found.limits if "hide behind computing" in one.why)
    assert 256 <= limit.gpus <= 512 and "from 2,483" in limit.why
    assert found.beyond is not None and found.beyond <= limit.gpus
    spent = asked(sequences=32, most=64)
    assert any("32 sequences has none left" in one.why for one in spent.limits)
    assert not asked(sequences=2048, most=64).limits, "a good network and a large batch: no limit is near"


def test_what_fits_nowhere_asks_for_model_parallelism() -> None:
    found = asked("llama-405b", card="8xA10", most=64, sequences=512)
    assert not found.points and found.knee is None and "no data-parallel strategy fits" in found.why
    assert found.beyond == 64 and found.layout is None


def test_batch_may_grow_with_the_gpus() -> None:
    found = asked(sequences=None, fields={"grad_accum": 2, "micro_batch": 1}, most=64)
    assert {p.run.workload.grad_accum for p in found.points} == {2}


def test_given_settings_are_kept() -> None:
    found = asked(fields={"micro_batch": 2, "checkpointing": "full"}, most=64)
    assert {(p.run.workload.micro_batch, p.run.workload.checkpointing) for p in found.points} == {(2, "full")}


def test_a_card_without_a_rate_is_refused_and_served_when_given_one() -> None:
    with pytest.raises(NotModelled, match="give --tflops"):
        asked(card="8xH100-96GB", most=8)
    assert asked(card="8xH100-96GB", most=8, tflops=836).points


def test_megatron_bytes() -> None:
    """Megatron: 18 bytes a parameter without, 6 + 12 / d with the distributed optimizer; Korthikanti's 530B row."""
    assert state_bytes(1000, 1, 1, 1) == 18_000
    assert (
        state_bytes(530_000_000_000, 8, 35, 1) == 530_000_000_000 // 280 * 18 + (1 if 530_000_000_000 % 280 else 0) * 18
    )
    none = activation_bytes(105, 20480, 0, 2048, 1, 8, False)
    assert none == pytest.approx(34 * 2048 * 20480 * 105 / 8, rel=0.01)


def test_layouts_fit_and_divide() -> None:
    found = list(layouts(resolve_model("llama-70b"), 64, 8, 4096, 1, 80 * 2**30))
    assert found and all(f.tensor * f.pipeline * f.data == 64 and f.tensor <= 8 for f in found)
    assert found[0].tensor * found[0].pipeline <= found[-1].tensor * found[-1].pipeline


def test_ten_thousand_points_in_two_seconds() -> None:
    """2 s of an idle core; half more is allowed here, where cores are shared. Processor time."""
    model, cluster = resolve_model("llama-70b"), parse_cluster("8xH100", network=400)
    counts = tuple(8 * n for n in range(8, 408))
    question = Question(model, cluster, 1e12, {"seq_len": 4096, "stack": "torch"}, 2**16, counts, FSDP[1:])
    asked(most=64)  # imports and catalogues are warm
    start = time.process_time()
    found = plan(question)
    spent = time.process_time() - start
    assert found.evaluated >= 10_000
    assert spent < 3.0, f"{spent:.2f} s for {found.evaluated} points"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["plan", *arguments])
    out = capsys.readouterr()
    return status, out.out, out.err


COMMON = ("--model", "llama-8b", "--gpu", "H100", "--tokens", "100B", "--max-gpus", "64", "--stack", "torch",
          "--strategy", "fsdp-full-shard", "--strategy", "ddp")  # fmt: skip


def test_table_says_where_it_stops_paying(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, *COMMON, "--deadline", "30d", "--price", "2", "--budget", "90000")
    assert status == 0 and "adding GPUs pays up to 64" in out
    assert "done in 30 days" in out and "a budget of 90,000" in out
    assert "network not given" in err


def test_json_csv_and_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *COMMON, "--format", "json", "--deadline", "30d")
    document = json.loads(out)
    assert document["schema"] == "dist-advisor/plan/1"
    assert document["rows"][0]["cost"] is None and document["answers"]["deadline"]
    _, out, err = run(capsys, *COMMON, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [int(r["gpus"]) for r in rows] == [r["gpus"] for r in document["rows"]]
    assert "adding GPUs pays" in err
    assert run(capsys, *COMMON, "--format", "markdown")[1].startswith("| gpus |")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("--tokens", "many"), "--tokens 'many' cannot be read"),
        (("--tokens", "0"), "out of range"),
        (("--tokens", "9" * 500), "cannot be read"),
        (("--deadline", "soon"), "--deadline 'soon' cannot be read"),
        (("--budget", "100"), "--budget needs a price"),
        (("--gpu", "Z9000"), "unknown GPU"),
        (("--gpu", "4xA10"), "name the card alone"),
        (("--max-gpus", "0"), "max-gpus"),
        (("--gpus-per-node", "x"), "gpus-per-node"),
        (("--global-batch", "-4"), "global-batch"),
        (("--strategy", "zero9"), "unknown strategy"),
        (("--tflops", "fast"), "tflops: 'fast' cannot be read"),
        (("--format", "yaml"), "format"),
    ],
)
def test_errors_are_one_line_with_status_2(
    changes: tuple[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, *COMMON, *changes)
    assert status == 2 and not out
    assert message in err and "Traceback" not in err and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["flops", "cost", "model_parallel"])
def test_worked_values_of_docstrings(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"estimators.time.{name}"))
    assert found.attempted and not found.failed


def test_counts_of_the_docstring() -> None:
    assert not doctest.testmod(importlib.import_module("selector.plan")).failed
