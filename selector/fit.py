"""What fits: for each strategy the largest micro-batch, the longest sequence, and the fewest GPUs of a kind.

Need never falls as the micro-batch or the sequence grows, so both are found by doubling and bisection; the tests
compare with trying every value. Only ``fits`` counts: a ``tight`` run may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from estimators.cluster import Cluster
from estimators.errors import AdvisorError
from estimators.memory import Estimate, default_strategies, estimate
from estimators.model.positions import learned_positions
from estimators.model.spec import ModelSpec
from estimators.strategy import Strategy, parse_strategy
from estimators.time.towers import only_images
from estimators.units import gib
from estimators.values import dataclass, replace
from estimators.workload import workload
from selector.cost import tokens_per_second
from selector.watched import watched

MOST_SEQUENCES = 2**16  # of a micro-batch
MOST_TOKENS = 2**24  # of a sequence
NODE = 8  # GPUs of a node when GPUs are counted
MOST_NODES = 128
NODES_ONE_BY_ONE = 8  # up to here every number of nodes is tried, above it bisection


@dataclass(frozen=True, slots=True)
class Fit:
    """What one strategy takes. A field is None where nothing fits, or where it was not asked.

    ``micro_batch`` counts images where a model sees nothing else; ``seq_len`` is None there.
    """

    strategy: str
    micro_batch: int | None = None
    seq_len: int | None = None
    fewest_gpus: int | None = None
    tokens_per_s_per_gpu: float | None = None  # at that micro-batch and the sequence length asked
    limited_by: str | None = None


def fit(
    model: ModelSpec,
    cluster: Cluster,
    strategies: Sequence[str | Strategy] | None = None,
    *,
    sizes: bool = True,
    count: bool = True,
    **fields: Any,
) -> tuple[list[Fit], dict[str, str]]:
    """The table of ``dist-advisor fit``, and why strategies were left out.

    ``sizes``: micro-batch and sequence length on the cluster as it is; ``count``: the fewest GPUs of its kind.
    Strategies that the caller named raise when they are illegal.
    """
    names = strategies or default_strategies(cluster, everything=False)
    if count and not sizes and not strategies:
        names = default_strategies(replace(cluster, gpus_per_node=NODE), everything=False)
    found: list[Fit] = []
    left_out: dict[str, str] = {}
    for name in watched(names):
        strategy = parse_strategy(name) if isinstance(name, str) else name
        try:
            found.append(fit_one(model, cluster, strategy, fields, sizes, count))
        except AdvisorError as reason:
            if strategies:
                raise
            left_out[strategy.name] = str(reason)
    return found, left_out


def fit_one(
    model: ModelSpec, cluster: Cluster, strategy: Strategy, fields: Mapping[str, Any], sizes: bool, count: bool
) -> Fit:
    """One strategy."""
    asked = workload(**fields)
    found, images = Fit(strategy.name), only_images(model)
    if sizes:

        def with_batch(value: int) -> Estimate:
            return estimate(model, cluster, strategy, **{**fields, "micro_batch": value})

        def with_tokens(value: int) -> Estimate:
            return estimate(model, cluster, strategy, **{**fields, "seq_len": value})

        batch = largest(with_batch, MOST_SEQUENCES, asked.micro_batch)
        tokens = None if images else largest(with_tokens, learned_positions(model) or MOST_TOKENS, asked.seq_len)
        at = with_batch((batch or 0) + 1) if (batch or 0) < MOST_SEQUENCES else None
        rate = tokens_per_second(with_batch(batch)) if batch else None
        found = replace(found, micro_batch=batch, seq_len=tokens, limited_by=limit(at), tokens_per_s_per_gpu=rate)
    if count:
        found = replace(found, fewest_gpus=fewest(model, cluster, strategy, fields))
        if not sizes:
            at = estimate(model, smallest(cluster, strategy), strategy, **fields)
            found = replace(found, limited_by=limit(at) if at.verdict != "fits" else None)
    return found


def largest(at: Callable[[int], Estimate], most: int, start: int = 1) -> int | None:
    """The largest value up to ``most`` that fits; None where not even 1 does. ``start`` is a guess."""
    guess = min(max(start, 1), most)
    low, high = (guess, most + 1) if fits(at(guess)) else (0, guess)
    step = max(guess, 1)
    while high > most and low < most:  # nothing that fails is known yet
        probe = min(low + step, most)
        if fits(at(probe)):
            low, step = probe, step * 2
        else:
            high = probe
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(at(middle)) else (low, middle)
    return low or None


def fits(estimate: Estimate) -> bool:
    return estimate.verdict == "fits"


def limit(estimate: Estimate | None) -> str | None:
    """What the first that does not fit lacks: ``GPU at backward: logits 7.8 GiB``; why, where that is unknown."""
    if estimate is None or fits(estimate):
        return None
    if estimate.verdict == "unknown":
        return f"unknown: {estimate.reason}"
    if estimate.reason in ("host RAM", "NVMe"):
        return estimate.reason
    terms = [t for t in estimate.peak.terms if t.place == "gpu"]
    most = max(terms, key=lambda t: t.bytes) if terms else None
    what = f": {most.name} {gib(most.bytes, 1)} GiB" if most else ""
    return f"GPU at {estimate.peak.name}{what}"


def smallest(cluster: Cluster, strategy: Strategy) -> Cluster:
    """The smallest cluster that a strategy makes sense on: two GPUs, or one for ``single`` and for offload."""
    alone = strategy.base == "single" or bool(strategy.optimizer or strategy.params)
    return replace(cluster, nodes=1, gpus_per_node=1 if alone else 2)


def clusters(cluster: Cluster, strategy: Strategy) -> Iterator[Cluster]:
    """Clusters of the same card and node, one GPU more each time up to a node, then whole nodes one by one."""
    first = smallest(cluster, strategy)
    most = 1 if strategy.base == "single" else NODE
    for gpus in range(first.gpus_per_node, most + 1):
        yield replace(first, gpus_per_node=gpus)
    if strategy.base != "single":
        for nodes in range(2, NODES_ONE_BY_ONE + 1):
            yield replace(first, gpus_per_node=NODE, nodes=nodes)


def fewest(model: ModelSpec, cluster: Cluster, strategy: Strategy, fields: Mapping[str, Any]) -> int | None:
    """The fewest GPUs: every count up to a node of eight, every node up to eight, above that by bisection of nodes."""

    def works(where: Cluster) -> bool:
        try:
            return fits(estimate(model, where, strategy, **fields))
        except AdvisorError:  # a group of ranks that does not divide this count
            return False

    for where in clusters(cluster, strategy):
        if works(where):
            return where.ranks
    if not strategy.is_sharded:
        return None  # replicated: another GPU takes nothing off the first
    most = replace(cluster, gpus_per_node=NODE, nodes=MOST_NODES)
    if not works(most):
        return None
    low, high = NODES_ONE_BY_ONE, MOST_NODES
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if works(replace(most, nodes=middle)) else (middle, high)
    return high * NODE
