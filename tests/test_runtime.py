"""What lies outside PyTorch's tensors: which overheads a strategy has, their bounds, and the allocator's reserve."""

from __future__ import annotations

from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators import runtime
from estimators.cluster import gpus, parse_cluster
from estimators.result import Interval
from estimators.run import Run, Settings
from estimators.runtime import RESERVE, Range, context_range, cublas_workspace, overheads, reserve, workspace_bytes
from estimators.strategy import ENGINES, parse_strategy
from estimators.units import GIB, MIB
from estimators.workload import Workload


def a_run(cluster: str, strategy: str, device: str = "cuda", torch: str = "2.13.0") -> Run:
    """A run of which only cluster, strategy, knobs and versions matter."""
    how, where = parse_strategy(strategy), parse_cluster(cluster)
    given: dict[str, Any] = {
        f.name: None for f in fields(Settings) if f.default is MISSING and f.default_factory is MISSING
    }
    knobs = {"shard": where.gpus_per_node, "hpz": 1, **how.options}
    given.update(device=device, knobs=knobs, versions={"torch": torch})
    model: Any = SimpleNamespace()
    return Run(model, where, Workload(), how, Settings(**given))


COMMUNICATORS = [
    ("A10", "single", []),
    ("8xA100", "ddp", ["all ranks"]),
    ("8xA100", "fsdp-full-shard", ["all ranks"]),
    ("8xA100", "fsdp1-full-shard+params@cpu", ["all ranks"]),
    ("2x8xH100", "fsdp-hybrid-shard", ["all ranks", "shards", "replicas"]),
    ("8xA100", "fsdp1-hybrid-shard:shard=4", ["all ranks", "shards", "replicas"]),
    ("8xA100", "fsdp-full-shard:reshard_after_forward=4", ["all ranks", "after forward"]),
    ("8xA100", "zero2", ["all ranks", "DeepSpeed's copy of all ranks"]),
    ("2x8xA100", "zero3:hpz=8", ["all ranks", "DeepSpeed's copy of all ranks", "ZeRO++ secondary shards"]),
    ("2x8xA100", "zero3:mics=8", ["all ranks", "DeepSpeed's copy of all ranks", "MiCS shards", "MiCS replicas"]),
    ("2x8xA100", "zero3:quantized_gradients", ["all ranks", "DeepSpeed's copy of all ranks", "ZeRO++ all-to-all"]),
]  # fmt: skip


@pytest.mark.parametrize(("cluster", "strategy", "groups"), COMMUNICATORS)
def test_communicators_by_strategy(cluster: str, strategy: str, groups: list[str]) -> None:
    names = [o.name for o in overheads(a_run(cluster, strategy))]
    assert names == ["context", *(f"communicator: {g}" for g in groups)]


@pytest.mark.parametrize("strategy", ENGINES)
@pytest.mark.parametrize("cluster", ["A10", "2xA100", "4xA10", "8xH100", "4x8xH100", "8xMI300X", "8xgaudi2"])
def test_every_overhead_is_an_interval_with_a_source(cluster: str, strategy: str) -> None:
    for found in overheads(a_run(cluster, strategy)):
        assert 0 <= found.low <= found.expected <= found.high < 16 * GIB
        assert "(n=" in found.source


def test_every_table_row_is_an_interval_with_a_source() -> None:
    rows = [r for r in vars(runtime).values() if isinstance(r, Range)]
    for row in (*rows, *runtime.CONTEXT.values(), *RESERVE.values()):
        assert 0 <= row.low <= row.expected <= row.high
        assert row.source and row.date and row.n >= 0
        assert row.n or row.source.startswith(("not measured", "nearest", "more with")), row.source
    assert set(RESERVE) == {engine for engine in ENGINES.values()}


def test_context_of_cards_that_were_measured() -> None:
    assert context_range(parse_cluster("A100").gpu).expected == 0.50
    assert context_range(parse_cluster("T4").gpu).expected == 0.14
    assert context_range(parse_cluster("Foo", gpu_memory="8GB").gpu) is runtime.CONTEXT_ELSEWHERE


def test_communicators_grow_with_links_and_nodes() -> None:
    def world(cluster: str) -> float:
        return overheads(a_run(cluster, "ddp"))[1].expected / GIB

    assert world("2xA100") == 0.53 and world("4xA100") == world("8xA100") == 0.67  # 544 and 688 MB, NCCL issue 964
    assert world("4xA10") < world("8xA100") < world("8xH100")
    assert world("2x8xA100") > world("8xA100")
    assert world("1xA100") < world("2xA100")


def test_replicas_of_one_node_cost_less_than_between_nodes() -> None:
    inside = overheads(a_run("8xA100", "fsdp-hybrid-shard:shard=4"))[3]
    between = overheads(a_run("2x8xA100", "fsdp-hybrid-shard"))[3]
    alone = overheads(a_run("8xA100", "fsdp-hybrid-shard"))[3]
    assert alone.expected < inside.expected < between.expected


WORKSPACES = [
    ("7.5", "2.13.0", 8519680), ("8.0", "2.4.1", 8519680), ("8.9", "2.13.0", 8519680), ("9.0", "2.1.0", 32 * MIB),
    ("10.0", "2.13.0", 32 * MIB), ("12.0", "2.13.0+cu130", 32 * MIB), ("10.0", "2.7.1", 8519680),
    ("gfx942", "2.13.0", 128 * MIB), ("gfx90a", "2.13.0", 32 * MIB), (None, "2.13.0", 32 * MIB), ("12.0", "", 32 * MIB),
]  # fmt: skip


@pytest.mark.parametrize(("capability", "torch", "size"), WORKSPACES)
def test_cublas_workspace_by_capability_and_version(capability: str | None, torch: str, size: int) -> None:
    assert workspace_bytes(capability, torch) == size


def test_cublas_workspace_is_one_term_for_two_handles() -> None:
    (term,) = cublas_workspace(a_run("8xA100", "ddp"))
    assert (term.category, term.place, term.bytes) == ("workspace", "gpu", 2 * 8519680)


@pytest.mark.parametrize("record", gpus(), ids=lambda r: r["id"])
def test_every_card_has_a_context_and_a_workspace(record: dict[str, Any]) -> None:
    run = a_run(record["id"], "single")
    assert overheads(run)[0].expected > 0 and cublas_workspace(run)[0].bytes > 0


def test_nothing_of_it_exists_on_a_cpu() -> None:
    run = a_run("4xA10", "zero3", device="cpu")
    assert overheads(run) == ()
    assert cublas_workspace(run) == ()
    assert reserve(run, Interval.exact(GIB)) == Interval.exact(GIB)


@pytest.mark.parametrize(("strategy", "engine"), [("ddp", "ddp"), ("zero3", "deepspeed"), ("fsdp-full-shard", "fsdp2")])
def test_reserve_is_a_ratio_while_there_is_room(strategy: str, engine: str) -> None:
    found, ratio = reserve(a_run("8xA100", strategy), Interval.exact(10 * GIB)), RESERVE[engine]
    for side in ("low", "expected", "high"):
        assert getattr(found, side) == pytest.approx(10 * GIB * (1 + getattr(ratio, side)))


@given(
    st.sampled_from(["single", "ddp", "zero2", "zero3", "fsdp-full-shard", "fsdp1-full-shard", "fsdp-hybrid-shard"]),
    st.sampled_from(["A10", "4xA10", "8xH100", "4x8xA100-40GB"]),
    st.lists(st.floats(0, 100), min_size=3, max_size=3).map(sorted),
)
def test_reserve_is_ordered_and_never_beyond_the_card(strategy: str, cluster: str, gibs: list[float]) -> None:
    run = a_run(cluster, strategy)
    allocated = Interval(*(g * GIB for g in gibs))
    found = reserve(run, allocated)
    assert found.low <= found.expected <= found.high
    left = run.cluster.gpu.memory_bytes - sum(o.high for o in overheads(run))
    for tensors, reserved in zip(gibs, (found.low, found.expected, found.high), strict=True):
        assert tensors * GIB <= reserved <= max(tensors * GIB, left)


@given(st.floats(0, 80), st.floats(0, 80))
def test_more_tensors_never_reserve_less(one: float, other: float) -> None:
    run = a_run("8xA100", "fsdp1-full-shard")
    small, large = (reserve(run, Interval.exact(g * GIB)) for g in sorted((one, other)))
    assert small.low <= large.low and small.expected <= large.expected and small.high <= large.high
