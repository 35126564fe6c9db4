"""Amounts over rates: a step as forward and backward phases, in each of which compute, wires and host overlap.

    phase = max(compute, inside, between, host)
          + a min(compute, inside) + b min(compute, between) + c min(compute, host)
    step  = (k - 1) x (forward + backward) + the last micro-step, with what only it sends, + what nothing hides

(S.1, S.2 of ``docs/formulas-time.md``.) Each function returns seconds in the order of ``FORMULAS``.
"""

from __future__ import annotations

from functools import lru_cache

from estimators.time import constants as c
from estimators.time.amounts import SILENT, Amounts
from estimators.time.card import Rates
from estimators.time.network import Links, fast_to_slow, seconds, waiting
from estimators.time.offload import adam_seconds, host_rate, nvme_seconds
from estimators.values import NamedTuple

# Parts of a step, in order: what each is.
FORMULAS = {
    "matrix products": "FLOPs of products / best measured rate (T.1, T.3)",
    "attention": "causal FLOPs of attention / rate of its kernels (T.2)",
    "activations": "bytes between products x moves / memory bandwidth (T.5)",
    "logits": "tokens x vocabulary x bytes / memory bandwidth (T.6)",
    "weight conversion": "bytes to unpack or cast weights / memory bandwidth (T.7, T.8)",
    "kernel launches": "launches x host time, beyond what the card is busy with (T.10)",
    "links inside a node": "collectives that compute does not hide (N.3, S.1)",
    "network between nodes": "collectives that compute does not hide (N.3, S.1)",
    "host copies": "copies over PCIe that compute does not hide (O.1, O.2)",
    "optimizer": "bytes of parameters, gradients, states / memory bandwidth (T.9)",
    "orthogonalisation": "FLOPs of Muon's iterations / best measured rate (T.11)",
    "CPU optimizer": "parameters of a node / rate of its CPU, and the copy back (O.3)",
    "NVMe": "bytes of states and parameters / rate of the node's disks (O.4)",
}
RESOURCE = dict(zip(FORMULAS, (
    "compute", "compute", "memory bandwidth", "memory bandwidth", "memory bandwidth", "launches", "links", "network",
    "PCIe", "memory bandwidth", "compute", "CPU Adam", "NVMe",
), strict=True))  # fmt: skip

FORWARD_LOGITS = 0.4  # of the bytes per logit; the rest moves in backward
Seconds = tuple[float, ...]


class Costs:
    """The constants that one end of the interval uses: 0 fast, 1 expected, 2 slow."""

    __slots__ = ("dequant", "dispatch", "experts", "fetch", "foreach", "fused_launches", "hidden", "moves", "scores",
                 "share")  # fmt: skip

    def __init__(self, i: int) -> None:
        def cost(constant: c.Constant) -> float:
            return (constant.low, constant.value, constant.high)[i]

        self.hidden = cost(c.INSIDE_COST), cost(c.BETWEEN_COST), cost(c.HOST_HIDDEN)
        self.moves = cost(c.ACTIVATION_MOVES), cost(c.COMPILED_MOVES)
        self.foreach = cost(c.OPTIMIZER_PASSES["fused"]), cost(c.OPTIMIZER_PASSES["foreach"])
        self.scores, self.experts = cost(c.SCORE_BYTES), cost(c.MOE_COST)
        self.dispatch = cost(c.DISPATCH) * cost(c.KERNELS_PER_PRODUCT)
        self.fetch, self.fused_launches = cost(c.FETCH), cost(c.COMPILED_LAUNCHES)
        self.share = fast_to_slow(c.BANDWIDTH_SHARE)[i]
        self.dequant = tuple(fast_to_slow(c.DEQUANT_SHARE[kind])[i] for kind in ("gptq4", "elsewhere"))


@lru_cache(maxsize=3)
def costs(i: int) -> Costs:
    return Costs(i)


def part_seconds(work: Amounts, card: Rates, network: Links, i: int) -> Seconds:
    """Seconds of each part of a step, in the order of ``FORMULAS``; ``i`` is 0 fast, 1 expected, 2 slow."""
    cost, k = costs(i), work.micro_steps
    forward, backward = compute(work, card, cost, i)
    load, rate = work.offload, card.bandwidth * cost.share
    host = host_rate(card, network.per_node)[i] if not load.is_empty else 1.0
    links, nets, copies = overlapped(work, network, sum(forward), sum(backward), host, cost, i)
    return (
        *(k * (f + b) for f, b in zip(forward, backward, strict=True)),
        links, nets, copies,
        work.optimizer_bytes * cost.foreach[0 if work.fused else 1] / rate,
        work.optimizer_flops / card.matmul[2 - i],
        adam_seconds(load, i, card.adam or network.adam) + load.up / host if load.adam else 0.0,
        nvme_seconds(load, i) if load.nvme_read else 0.0,
    )  # fmt: skip


def overlapped(
    work: Amounts, network: Links, busy_f: float, busy_b: float, host: float, cost: Costs, i: int
) -> tuple[float, float, float]:
    """S.2: seconds that links, network and host copies add to all micro-steps, and what the step adds alone."""
    if work.sent is SILENT and work.offload.is_empty:
        return 0.0, 0.0, 0.0
    found, k = waits(work, network, busy_f, busy_b, host, cost, i), work.micro_steps
    every_f, every_b, first_f, last_b = (
        found.every_forward,
        found.every_backward,
        found.first_forward,
        found.last_backward,
    )
    links = (k - 1) * (every_f[0] + every_b[0]) + first_f[0] + last_b[0] + found.step[0]
    nets = (k - 1) * (every_f[1] + every_b[1]) + first_f[1] + last_b[1] + found.step[1]
    copies = (k - 1) * (every_f[2] + every_b[2]) + first_f[2] + last_b[2]
    return links, nets + found.between, copies


class Waits(NamedTuple):
    """What links, network and host copies add, in that order, to each phase of a step; seconds."""

    every_forward: tuple[float, float, float]
    first_forward: tuple[float, float, float]
    every_backward: tuple[float, float, float]
    last_backward: tuple[float, float, float]
    step: tuple[float, float]
    between: float  # ranks that wait for each other


def waits(work: Amounts, network: Links, busy_f: float, busy_b: float, host: float, cost: Costs, i: int) -> Waits:
    """S.2, phase by phase."""
    sent, load = work.sent, work.offload
    wires_f, wires_b = seconds(sent.forward, network, i), seconds(sent.backward, network, i)
    every_f = first_f = exposed(busy_f, wires_f, load.forward / host, cost)
    every_b = last_b = exposed(busy_b, wires_b, load.backward / host, cost)
    if sent.once.inside or sent.once.between:
        once = seconds(sent.once, network, i)
        first_f = exposed(busy_f, (wires_f[0] + once[0], wires_f[1] + once[1]), load.forward / host, cost)
    if sent.last.inside or sent.last.between or load.sync:
        last = seconds(sent.last, network, i)
        wires_b = wires_b[0] + last[0], wires_b[1] + last[1]
        last_b = exposed(busy_b, wires_b, (load.backward + load.sync) / host, cost)
    inside, between = seconds(sent.step, network, i)
    step = inside if inside >= between else 0.0, between if between > inside else 0.0
    return Waits(every_f, first_f, every_b, last_b, step, waiting(sent.total, i))


def compute(work: Amounts, card: Rates, cost: Costs, i: int) -> tuple[Seconds, Seconds]:
    """T.1-T.8, T.10: seconds of one forward and one backward that the card itself is busy, by part."""
    flops, moved, memory = work.flops, work.traffic, card.bandwidth
    matmul, attention = card.matmul[2 - i], card.attention[2 - i]
    products = 1.0 + work.expert_share * (cost.experts - 1.0)
    moves = cost.moves[1 if work.compiled else 0] / memory
    logits = moved.logits * work.logit_bytes[i] / memory
    scores = moved.scores * cost.scores / memory
    packed = moved.packed / (memory * cost.dequant[0 if work.gptq else 1])
    fused = cost.fused_launches if work.compiled else 1.0
    launches = work.kernels * cost.dispatch * fused + work.fetches * cost.fetch
    halves = []
    again = moved.passes - 2
    for product, kernel, ends, share, passes, unpacked, over, casts in (
        (flops.forward, flops.attention_forward, moved.forward, FORWARD_LOGITS, 1.0, 1.0, 1.0, moved.casts),
        (flops.backward, flops.attention_backward, moved.backward, 1 - FORWARD_LOGITS, 2 + again, 1 + again,
         c.BACKWARD_SCORES + again, 0.0),
    ):  # fmt: skip
        times = [product * products / matmul, kernel / attention + scores * over, ends * moves, logits * share,
                 packed * unpacked + casts / memory]  # fmt: skip
        halves.append((*times, max(0.0, launches * passes - sum(times))))
    return halves[0], halves[1]


def exposed(busy: float, wires: tuple[float, float], host: float, cost: Costs) -> tuple[float, float, float]:
    """S.1: what links, network and host copies add to a phase whose compute takes ``busy`` seconds.

    The longest of them beyond ``busy``, and of each a share of the time that it runs beside compute, because
    collectives take multiprocessors and bandwidth.
    """
    inside, between = wires
    a, b, h = cost.hidden
    added = a * min(busy, inside), b * min(busy, between), h * min(busy, host)
    longest = max(inside, between, host)
    if longest <= busy:
        return added
    beyond = longest - busy
    if inside == longest:
        return added[0] + beyond, added[1], added[2]
    if between == longest:
        return added[0], added[1] + beyond, added[2]
    return added[0], added[1], added[2] + beyond
