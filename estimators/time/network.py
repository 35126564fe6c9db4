"""Seconds of a collective: ring and hierarchical, with its size. Formulas N.1-N.4 of ``docs/formulas-time.md``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from estimators.cluster import Cluster
from estimators.time.card import Rates
from estimators.time.constants import (
    CALL_BETWEEN,
    CALL_INSIDE,
    LINK_SHARE,
    NIC_SHARE,
    PCIE_SHARE,
    RING_HOP,
    USUAL_LINK,
    USUAL_NIC,
    Constant,
)
from estimators.time.host_cpu import described_adam
from estimators.time.volumes import RING_TURNS, Message
from estimators.values import dataclass

Three = tuple[float, float, float]  # fast, expected, slow


@dataclass(frozen=True, slots=True)
class Links:
    """bytes/s that collectives get per GPU inside a node and per adapter between nodes: fast, expected, slow.

    ``adam``: parameters/s of the node's CPU, where its cores or its DRAM were given.
    """

    inside: Three
    between: Three
    per_node: int
    notes: tuple[str, ...]
    adam: Three | None = None


def fast_to_slow(constant: Constant, scale: float = 1.0) -> Three:
    """A rate's constant as (fast, expected, slow)."""
    return constant.high * scale, constant.value * scale, constant.low * scale


@lru_cache(maxsize=1024)
def links(cluster: Cluster, card: Rates) -> Links:
    """N.1: as this machine measured; else NVLink at ``LINK_SHARE``, PCIe at ``PCIE_SHARE``, and adapters as given, else as
    the card is usually bought.
    """
    notes: tuple[str, ...] = ()
    own = cluster.measured
    measured = own.three("link_bytes_per_s") if own else None
    if measured is not None:
        inside = measured
    elif cluster.has_nvlink and card.link:
        inside = fast_to_slow(LINK_SHARE, card.link)
    elif cluster.has_nvlink:
        usual = USUAL_LINK.get(card.generation, USUAL_LINK["elsewhere"])
        inside = (usual.high * LINK_SHARE.high, usual.value * LINK_SHARE.value, usual.low * LINK_SHARE.low)
        notes = (f"the catalogue has no link rate for this card: {usual.value / 1e9:g} GB/s one way assumed, wide",)
    else:
        inside = fast_to_slow(PCIE_SHARE, card.slot)
        if cluster.gpus_per_node > 1:
            notes = ("cards of a node talk over PCIe: few such rates were published, a factor of three either way",)
    carried = own.three("network_bytes_per_s") if own else None
    if carried is not None:
        between = carried
    elif cluster.network_bits_per_s is not None:
        between = fast_to_slow(NIC_SHARE, cluster.network_bits_per_s / 8)
    else:
        usual = USUAL_NIC.get(card.generation, USUAL_NIC["elsewhere"])
        between = (usual.high * NIC_SHARE.high, usual.value * NIC_SHARE.value, usual.low * NIC_SHARE.low)
        if cluster.nodes > 1:
            rate = f"{usual.value * 8 / 1e9:g}"
            notes = (*notes, f"network not given: {rate} Gbit/s per GPU assumed, wide (give --network)")
    adam = described_adam(cluster.cpu_cores, cluster.dram_bytes_per_s)
    return Links(inside, between, cluster.gpus_per_node, notes, adam)


def placement(message: Message, per_node: int) -> tuple[int, int]:
    """Ranks of a group inside one node, and nodes that it spans: 16 neighbours on nodes of 8 -> (8, 2)."""
    inside = min(message.ranks, per_node) if message.stride == 1 else max(1, per_node // message.stride)
    inside = min(inside, message.ranks)
    return inside, -(-message.ranks // inside)


@dataclass(frozen=True, slots=True)
class Wires:
    """What one occurrence of some messages asks of the wires, per GPU."""

    inside: float = 0.0  # bytes over the links of a node
    inside_calls: int = 0
    between: float = 0.0  # bytes over the adapter of a GPU
    between_calls: int = 0
    hops: int = 0  # steps from node to node that wait for one another


def total(parts: Sequence[tuple[Wires, int]]) -> Wires:
    """The sum of some messages, each so many times."""
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    return Wires(
        sum(w.inside * n for w, n in parts), sum(w.inside_calls * n for w, n in parts),
        sum(w.between * n for w, n in parts), sum(w.between_calls * n for w, n in parts),
        sum(w.hops * n for w, n in parts),
    ) if parts else SILENCE  # fmt: skip


SILENCE = Wires()


def wires(message: Message, per_node: int) -> Wires:
    """N.2: bytes of one occurrence: inside turns x (n - 1) / n x B; between turns x (K - 1) / K x B / ranks of a node.

    Every card of a node has its adapter carry its share (NCCL's rings, not one ring): 14 GB over 2 nodes of 8 GPUs are
    13.1 GB inside and 0.875 GB through each adapter. A ring takes K - 1 steps from node to node one after the other;
    an all-reduce may go up and down a tree instead.
    """
    inside, nodes = placement(message, per_node)
    turns = RING_TURNS[message.collective]
    calls = message.calls * turns
    here = turns * (message.ranks - 1) / message.ranks * message.num_bytes if inside > 1 else 0.0
    if nodes == 1:
        return Wires(here, calls)
    hops = 2 * (nodes - 1).bit_length() if message.collective == "all-reduce" else nodes - 1
    between = turns * (nodes - 1) / nodes * message.num_bytes / inside
    return Wires(here, calls if inside > 1 else 0, between, calls, hops * message.calls)


def seconds(on: Wires, network: Links, i: int) -> tuple[float, float]:
    """N.3: (inside, between) seconds; ``i`` is 0 fast, 1 expected, 2 slow.

    t = bytes / rate + calls x latency: the size curve of nccl-tests as a line. 14 GB over 8 A100 (240 GB/s) in 33
    calls: 51 ms + 2 ms.
    """
    inside, between = INSIDE_LATENCY[i], BETWEEN_LATENCY[i]
    return on.inside / network.inside[i] + on.inside_calls * inside, (
        on.between / network.between[i] + on.between_calls * between if on.between_calls else 0.0
    )


def waiting(on: Wires, i: int) -> float:
    """N.4: what a ring's steps from node to node cost, which no compute hides."""
    return on.hops * HOP_LATENCY[i]


def _latency(constant: Constant) -> Three:
    return constant.low, constant.value, constant.high


INSIDE_LATENCY, BETWEEN_LATENCY, HOP_LATENCY = _latency(CALL_INSIDE), _latency(CALL_BETWEEN), _latency(RING_HOP)
