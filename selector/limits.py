"""Where data parallelism alone has had its time: published limits and what the sweep shows, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from estimators.time.card import Unknown, rates_of
from estimators.time.model_parallel import hiding_tokens
from estimators.time.network import links
from estimators.values import dataclass
from estimators.workload import workload

if TYPE_CHECKING:
    from selector.plan import Plan

WASTES = 0.7  # tokens per second and GPU below this share of the best: data parallelism alone has had its time
EXPECTED = 1


@dataclass(frozen=True, slots=True)
class Limit:
    """The first count of a sweep that is beyond it, and why."""

    gpus: int
    why: str


def limits(plan: Plan) -> tuple[Limit, ...]:
    """Every limit that the sweep crosses, the one of the fewest GPUs first."""
    return tuple(sorted((*_memory(plan), *_efficiency(plan), *_batch(plan), *_hiding(plan)), key=lambda one: one.gpus))


def _memory(plan: Plan) -> Iterator[Limit]:
    if not plan.points:
        yield Limit(max(plan.question.counts), "no strategy that only cuts the batch and the states fits the card")


def _efficiency(plan: Plan) -> Iterator[Limit]:
    """The first count after the last that is served well; counts that nothing serves are another limit's."""
    good = max((p.gpus for p in plan.points if plan.efficiency(p) >= WASTES), default=None)
    point = next((p for p in plan.points if good is not None and p.gpus > good), None)
    if point is not None:
        yield Limit(point.gpus, f"a GPU does {plan.efficiency(point):.0%} of what it does at the best count")


def _batch(plan: Plan) -> Iterator[Limit]:
    """Each rank needs a sequence of its own: the global batch bounds the ranks."""
    sequences = plan.question.sequences
    count = next((n for n in plan.question.counts if sequences is not None and n > sequences), None)
    if count is not None:
        yield Limit(count, f"the global batch of {sequences:,} sequences has none left for every GPU")


def _hiding(plan: Plan) -> Iterator[Limit]:
    """M.4: gathers between nodes hide behind computing while a GPU has enough tokens a micro-step; the batch bounds them.

    Asked of counts whose fastest strategy gathers weights from other nodes.
    """
    sequences, seq_len = plan.question.sequences, workload(**plan.question.fields).seq_len
    for point in plan.points:
        run = point.run
        card = rates_of(run.cluster, run.settings.compute_dtype, plan.question.tflops, plan.question.bandwidth)
        gathers = run.strategy.stage == 3 or bool(run.strategy.sharding)
        if sequences is None or isinstance(card, Unknown) or not gathers or run.shards <= run.cluster.gpus_per_node:
            continue
        carried = links(run.cluster, card).between[EXPECTED] * run.cluster.gpus_per_node
        needed, there = hiding_tokens(card.matmul[EXPECTED], carried), sequences * seq_len / point.gpus
        if there < needed:
            yield Limit(
                point.gpus,
                f"its share of the batch is {there:,.0f} tokens a step, and gathers from other nodes hide behind computing "
                f"from {needed:,.0f}",
            )
            return
