"""Amounts over rates: a step as forward and backward phases, in each of which compute, wires and host overlap.

    phase = max(compute, inside, between, host) + a min(compute, inside) + b min(compute, between) + c min(compute, host)
    step  = (k - 1) x (forward + backward) + the last micro-step, with what only it sends, + what nothing hides

(S.1, S.2 of ``docs/formulas-time.md``.) Each function returns seconds in the order of ``FORMULAS``.
"""

from __future__ import annotations

from functools import lru_cache

from estimators.time import constants as c
from estimators.time.amounts import Amounts
from estimators.time.card import Rates
from estimators.time.network import Links, fast_to_slow, seconds
from estimators.time.offload import adam_seconds, host_rate, nvme_seconds

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
    "CPU optimizer": "parameters of a node / rate of its CPU, and the copy back (O.3)",
    "NVMe": "bytes of states and parameters / rate of the node's disks (O.4)",
}
RESOURCE = dict(zip(FORMULAS, (
    "compute", "compute", "memory bandwidth", "memory bandwidth", "memory bandwidth", "launches", "links", "network",
    "PCIe", "memory bandwidth", "CPU Adam", "NVMe",
), strict=True))  # fmt: skip

FORWARD_LOGITS = 0.4  # of the bytes per logit; the rest moves in backward
Seconds = tuple[float, ...]


class Costs:
    """The constants that one end of the interval uses: 0 fast, 1 expected, 2 slow."""

    __slots__ = ("dequant", "dispatch", "experts", "fetch", "foreach", "fused_launches", "hidden", "moves", "scores", "share")

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
    busy_f, busy_b = sum(forward), sum(backward)
    wires = sent(work, network, i)
    host = host_rate(card, network.per_node)[i]
    load = work.offload
    every_f = exposed(busy_f, wires["forward"], load.forward / host, cost)
    every_b = exposed(busy_b, wires["backward"], load.backward / host, cost)
    last_b = every_b
    if wires["last"] != (0.0, 0.0) or load.sync:
        both = wires["backward"][0] + wires["last"][0], wires["backward"][1] + wires["last"][1]
        last_b = exposed(busy_b, both, (load.backward + load.sync) / host, cost)
    once = wires["once"]
    first_f = exposed(busy_f, (wires["forward"][0] + once[0], wires["forward"][1] + once[1]), load.forward / host, cost)
    inside, between, copies = (
        (k - 1) * (every_f[j] + every_b[j]) + first_f[j] + last_b[j] for j in range(3)
    )
    alone = wires["step"]
    rate = card.bandwidth * cost.share
    return (
        *(k * (f + b) for f, b in zip(forward, backward, strict=True)),
        inside + (alone[0] if alone[0] >= alone[1] else 0.0),
        between + (alone[1] if alone[1] > alone[0] else 0.0) + wires["wait"][1], copies,
        work.optimizer_bytes * cost.foreach[0 if work.fused else 1] / rate,
        adam_seconds(load, i) + load.up / host if load.adam else 0.0,
        nvme_seconds(load, i) if load.nvme_read else 0.0,
    )  # fmt: skip


def compute(work: Amounts, card: Rates, cost: Costs, i: int) -> tuple[Seconds, Seconds]:
    """T.1-T.8, T.10: seconds of one forward and one backward that the card itself is busy, by part."""
    flops, moved, memory = work.flops, work.traffic, card.bandwidth
    matmul, attention = card.matmul[2 - i], card.attention[2 - i]
    products = 1.0 + work.expert_share * (cost.experts - 1.0)
    moves = cost.moves[1 if work.compiled else 0] / memory
    logits = moved.logits * work.logit_bytes[i] / memory
    scores = moved.scores * cost.scores / memory
    packed = moved.packed / (memory * cost.dequant[0 if work.gptq else 1])
    launches = work.kernels * cost.dispatch * (cost.fused_launches if work.compiled else 1.0) + work.fetches * cost.fetch
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


def sent(work: Amounts, network: Links, i: int) -> dict[str, tuple[float, float]]:
    """N.3: (inside, between) seconds by when they happen: every micro-step's forward and backward, the first
    forward only (``once``), the last backward only (``last``), beside nothing (``step``) and waiting (``wait``)."""
    found = dict.fromkeys(("forward", "backward", "once", "last", "step", "wait"), (0.0, 0.0))
    waiting = 0.0
    for message in work.messages:
        inside, between, wait = seconds(message, network, i)
        waiting += message.times * wait
        when, times = message.phase, 1
        if when == "step":
            times = message.times
        elif message.times < work.micro_steps:
            when = "once" if when == "forward" else "last"
        before = found[when]
        found[when] = before[0] + times * inside, before[1] + times * between
    found["wait"] = 0.0, waiting
    return found


def exposed(busy: float, wires: tuple[float, float], host: float, cost: Costs) -> tuple[float, float, float]:
    """S.1: what links, network and host copies add to a phase whose compute takes ``busy`` seconds.

    The longest of them beyond ``busy``, and of each a share of the time that it runs beside compute, because
    collectives take multiprocessors and bandwidth.
    """
    inside, between = wires
    a, b, h = cost.hidden
    added = [a * min(busy, inside), b * min(busy, between), h * min(busy, host)]
    longest = max(inside, between, host)
    if longest > busy:
        added[(inside, between, host).index(longest)] += longest - busy
    return added[0], added[1], added[2]
