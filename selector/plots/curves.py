"""What the picture of limits shows, computed: memory as one thing of the question grows, and the frontier of what fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from estimators.cluster import Cluster
from estimators.errors import AdvisorError
from estimators.memory import Estimate, estimate, estimate_all
from estimators.model.spec import ModelSpec
from estimators.strategy import Strategy
from estimators.values import dataclass, replace
from estimators.workload import workload
from selector.fit import NODE, largest
from selector.report.text import by_verdict

MOST_LINES = 6
LENGTHS = tuple(2**k for k in range(9, 18))  # tokens: 512 ... 131,072
BATCHES = tuple(2**k for k in range(7))
COUNTS = tuple(2**k for k in range(8))
MOST_BATCH = 4096  # sequences of a micro-batch up to which the frontier is looked for


@dataclass(frozen=True, slots=True)
class Point:
    """One estimate: bytes of tensors, context and communicators of one GPU, and the verdict."""

    at: int
    num_bytes: float
    verdict: str


@dataclass(frozen=True, slots=True)
class Curves:
    """One strategy. ``frontier``: (tokens of a sequence, largest micro-batch that fits), where there is one."""

    strategy: str
    by_length: tuple[Point, ...]
    by_batch: tuple[Point, ...]
    by_count: tuple[Point, ...]
    frontier: tuple[tuple[int, int], ...]


def curves(
    model: ModelSpec, cluster: Cluster, strategies: Sequence[str | Strategy] | None, fields: Mapping[str, Any]
) -> tuple[list[Curves], int]:
    """At most ``MOST_LINES`` strategies, what fits at the question first; and how many were left out."""
    asked = workload(**fields)
    found, _ = estimate_all(model, cluster, strategies, **fields)
    kept: list[Curves] = []
    for one in by_verdict(found):
        if len(kept) == MOST_LINES:
            break
        made = _of(model, cluster, one.run.strategy, fields, asked.seq_len, asked.micro_batch)
        if not any(_same(made, other) for other in kept):  # hybrid on one node is full shard
            kept.append(made)
    return kept, len(found) - len(kept)


def _of(
    model: ModelSpec, cluster: Cluster, strategy: Strategy, fields: Mapping[str, Any], seq_len: int, micro: int
) -> Curves:
    def at(where: Cluster, **changes: int) -> Estimate:
        return estimate(model, where, strategy, **{**fields, **changes})

    frontier: list[tuple[int, int]] = []
    for tokens in _with(LENGTHS, seq_len):
        guess = max(frontier[-1][1] // 2, 1) if frontier else micro
        size = largest(lambda value, n=tokens: at(cluster, seq_len=n, micro_batch=value), MOST_BATCH, guess)  # type: ignore[misc]
        if size is None:  # nor at any longer one
            break
        frontier.append((tokens, size))
    return Curves(
        strategy.name,
        points(_with(LENGTHS, seq_len), lambda n: at(cluster, seq_len=n)),
        points(_with(BATCHES, micro), lambda n: at(cluster, micro_batch=n)),
        points(_with(COUNTS, cluster.ranks), lambda n: at(of_size(cluster, n))),
        tuple(frontier),
    )


def _with(usual: Sequence[int], asked: int) -> list[int]:
    return sorted({*usual, asked})


def of_size(cluster: Cluster, gpus: int) -> Cluster:
    """So many GPUs of the kind; more than a node in whole nodes."""
    if gpus == cluster.ranks:
        return cluster
    node = max(cluster.gpus_per_node, NODE)
    return replace(cluster, gpus_per_node=min(gpus, node), nodes=max(1, gpus // node))


def points(values: Sequence[int], at: Callable[[int], Estimate]) -> tuple[Point, ...]:
    """Estimates along one axis; values that a strategy does not take are left out."""
    found = []
    for value in values:
        try:
            one = at(value)
        except AdvisorError:
            continue
        outside = sum(o.expected for o in one.gpu.runtime)
        found.append(Point(value, one.peak.gpu_bytes + outside, one.verdict))
    return tuple(found)


def _same(a: Curves, b: Curves) -> bool:
    return replace(a, strategy=b.strategy) == b
