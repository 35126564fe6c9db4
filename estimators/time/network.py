"""Seconds of a collective: ring and hierarchical, with the size curve. Formulas N.1-N.4 of ``docs/formulas-time.md``."""

from __future__ import annotations

from dataclasses import dataclass

from estimators.cluster import Cluster
from estimators.time.card import Rates
from estimators.time.constants import (
    CALL_BETWEEN,
    CALL_INSIDE,
    LINK_SHARE,
    NIC_SHARE,
    PCIE_SHARE,
    RING_HOP,
    USUAL_NIC,
    Constant,
)
from estimators.time.volumes import RING_TURNS, Message

Three = tuple[float, float, float]  # fast, expected, slow


@dataclass(frozen=True, slots=True)
class Links:
    """bytes/s that collectives get per GPU inside a node and per adapter between nodes: fast, expected, slow."""

    inside: Three
    between: Three
    per_node: int
    notes: tuple[str, ...]


def fast_to_slow(constant: Constant, scale: float = 1.0) -> Three:
    """A rate's constant as (fast, expected, slow)."""
    return constant.high * scale, constant.value * scale, constant.low * scale


def links(cluster: Cluster, card: Rates) -> Links:
    """N.1: NVLink at ``LINK_SHARE``, PCIe at ``PCIE_SHARE``; adapters as given, else as the card is usually bought."""
    notes: tuple[str, ...] = ()
    if cluster.has_nvlink and card.link:
        inside = fast_to_slow(LINK_SHARE, card.link)
    else:
        inside = fast_to_slow(PCIE_SHARE, card.slot)
        if cluster.gpus_per_node > 1:
            notes = ("cards of a node talk over PCIe: their rate is not measured, a factor of two either way",)
    if cluster.network_bits_per_s is not None:
        between = fast_to_slow(NIC_SHARE, cluster.network_bits_per_s / 8)
    else:
        usual = USUAL_NIC.get(card.generation, USUAL_NIC["elsewhere"])
        between = (usual.high * NIC_SHARE.high, usual.value * NIC_SHARE.value, usual.low * NIC_SHARE.low)
        if cluster.nodes > 1:
            rate = f"{usual.value * 8 / 1e9:g}"
            notes = (*notes, f"network not given: {rate} Gbit/s per GPU assumed, wide (give --network)")
    return Links(inside, between, cluster.gpus_per_node, notes)


def placement(message: Message, per_node: int) -> tuple[int, int]:
    """Ranks of a group inside one node, and nodes that it spans: 16 neighbours on nodes of 8 -> (8, 2)."""
    inside = min(message.ranks, per_node) if message.stride == 1 else max(1, per_node // message.stride)
    inside = min(inside, message.ranks)
    return inside, -(-message.ranks // inside)


def wires(message: Message, per_node: int) -> tuple[float, float, float, int, int]:
    """What one occurrence of a message asks of the wires: bytes inside, bytes between, latency, calls, nodes.

    N.2, per GPU: inside turns x (n - 1) / n x bytes; between turns x (K - 1) / K x bytes / ranks in the node, because
    every card of a node has its adapter carry its share (NCCL's rings, not one ring). A ring takes its n - 1 steps
    one after the other; an all-reduce may go up and down a tree instead.
    """
    inside, nodes = placement(message, per_node)
    turns = RING_TURNS[message.collective]
    here = turns * (message.ranks - 1) / message.ranks * message.num_bytes if inside > 1 else 0.0
    between = turns * (nodes - 1) / nodes * message.num_bytes / inside
    hops = 2 * (nodes - 1).bit_length() if message.collective == "all-reduce" else nodes - 1
    return here, between, hops * message.calls, message.calls * turns, nodes


def seconds(message: Message, network: Links, i: int) -> Three:
    """N.3: (inside, between, wait) seconds of one occurrence; ``i`` is 0 fast, 1 expected, 2 slow.

    t = bytes / rate + calls x latency: the size curve of nccl-tests as a line. 14 GB over 8 A100 (240 GB/s) in 33
    calls: 51 ms + 2 ms. N.4: ``wait`` is what a ring's steps from node to node cost, which no compute hides.
    """
    here, between, hops, calls, nodes = wires(message, network.per_node)
    first = here / network.inside[i] + calls * latency(CALL_INSIDE, i) if here else 0.0
    if nodes == 1:
        return first, 0.0, 0.0
    return first, between / network.between[i] + calls * latency(CALL_BETWEEN, i), hops * latency(RING_HOP, i)


def latency(constant: Constant, i: int) -> float:
    return (constant.low, constant.value, constant.high)[i]
