"""Collectives against nccl-tests curves, and what a network that is not known does to an interval."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from estimators.cluster import DATA, parse_cluster
from estimators.time.card import Rates, rates
from estimators.time.network import links, placement, seconds, waiting, wires
from estimators.time.volumes import Message

CURVES = json.loads(Path(DATA, "gpus.json").read_text(encoding="utf-8"))["meta"]["measured_collectives"]
BYTES = {"MiB": 2**20, "GiB": 2**30}


def message(size: int, ranks: int, collective: str = "all-reduce", stride: int = 1, calls: int = 1) -> Message:
    return Message("probe", collective, size, ranks, 1, calls, "step", stride)


def bus_bandwidth(spec: str, size: int, ranks: int, network: float | None = None) -> float:
    """GB/s as nccl-tests prints it for an all-reduce: 2 (n - 1) / n x bytes / time."""
    cluster = parse_cluster(spec, network=network)
    card = rates(cluster.gpu, "bf16")
    assert isinstance(card, Rates)
    on = wires(message(size, ranks), cluster.gpus_per_node)
    time = max(seconds(on, links(cluster, card), 1)) + waiting(on, 1)
    return 2 * (ranks - 1) / ranks * size / time / 1e9


def points(curve: str) -> list[tuple[int, float]]:
    return [(int(k[:-3]) * BYTES[k[-3:]], v) for k, v in CURVES[curve].items()]


@pytest.mark.parametrize(("size", "measured"), points("a100_8gpu_all_reduce"))
def test_a100_node_curve(size: int, measured: float) -> None:
    """ml-engineering's run; a line of latency and rate stays within 35 % at every size, 5 % at the largest."""
    assert bus_bandwidth("8xA100", size, 8) == pytest.approx(measured, rel=0.05 if size > 2**32 else 0.35)


@pytest.mark.parametrize(("size", "measured"), points("b200_4nodes_all_reduce_8x50GBps_nic"))
def test_four_nodes_of_b200_curve(size: int, measured: float) -> None:
    assert bus_bandwidth("4x8xB200", size, 32, network=400) == pytest.approx(
        measured, rel=0.12 if size > 2**32 else 0.37
    )


def test_placement_of_groups() -> None:
    assert placement(message(1, 16), 8) == (8, 2)
    assert placement(message(1, 4), 8) == (4, 1)
    assert placement(message(1, 4, stride=8), 8) == (1, 4)
    assert placement(message(1, 8, stride=2), 8) == (4, 2)


def test_worked_value_of_the_docstring() -> None:
    on = wires(message(14_000_000_000, 16, "all-gather"), 8)
    assert on.inside == 14e9 * 15 / 16 and on.between == 0.875e9
    cluster = parse_cluster("8xA100")
    card = rates(cluster.gpu, "bf16")
    assert isinstance(card, Rates)
    inside, between = seconds(wires(message(14_000_000_000, 8, "all-gather", calls=33), 8), links(cluster, card), 1)
    assert inside == pytest.approx(0.051 + 0.002, rel=0.02) and between == 0


def test_adapters_share_what_crosses_nodes() -> None:
    """Each of 8 adapters carries an eighth: bytes between nodes per GPU = bytes x (K - 1) / K / 8."""
    assert wires(message(8_000, 16, "reduce-scatter"), 8).between == 500


def test_an_unknown_network_is_assumed_and_wide() -> None:
    known, unknown = parse_cluster("2x8xH100", network=400), parse_cluster("2x8xH100")
    card = rates(known.gpu, "bf16")
    assert isinstance(card, Rates)
    given, assumed = links(known, card), links(unknown, card)
    assert not given.notes and "network not given" in assumed.notes[0]
    assert assumed.between[0] / assumed.between[2] > 2 * given.between[0] / given.between[2]


def test_cards_without_nvlink_go_through_pcie_and_say_so() -> None:
    cluster = parse_cluster("8xA10")
    card = rates(cluster.gpu, "bf16")
    assert isinstance(card, Rates)
    found = links(cluster, card)
    assert found.inside[1] < 0.2 * card.slot and "PCIe" in found.notes[0]


def test_the_user_may_say_that_there_is_a_bridge() -> None:
    plain, bridged = parse_cluster("2xRTX3090"), parse_cluster("2xRTX3090", interconnect="nvlink")
    card = rates(plain.gpu, "bf16")
    assert isinstance(card, Rates)
    assert links(bridged, card).inside[1] > 5 * links(plain, card).inside[1]
