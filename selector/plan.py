"""Time and cost of a training run against the number of GPUs, and where adding GPUs stops paying.

``plan`` sweeps counts x strategies x micro-batches x checkpointing at one global batch, takes the fastest that fits at
each count, and says which count answers a deadline or a budget. A point costs one evaluation of the time model; memory
is asked only of what would win.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import log2
from typing import TYPE_CHECKING, Any

from estimators.cluster import Cluster, gpu_fact
from estimators.errors import AdvisorError, IllegalCombination, NotModelled
from estimators.memory import Estimate, check_ranks, resolve
from estimators.model.spec import ModelSpec
from estimators.run import Run
from estimators.strategy import parse_strategy
from estimators.time import StepTime, Unknown, step_time
from estimators.time.card import rates_of
from estimators.time.cost import Cost, cost
from estimators.time.model_parallel import Layout, layouts, rough_bytes
from estimators.time.step import expected_seconds
from estimators.values import cached_property, dataclass, replace
from estimators.workload import Workload, workload
from selector.limits import Limit, limits
from selector.watched import watched

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVERY_STEP = "fsdp-full-shard:sync_each_batch"  # gradients sharded while accumulating: more is sent, less is held
STRATEGIES = (
    "ddp",
    "zero1",
    "zero2",
    "zero3",
    "fsdp-shard-grad-op",
    "fsdp-hybrid-shard",
    "fsdp-full-shard",
    EVERY_STEP,
)
MICRO_BATCHES = (1, 2, 4, 8, 16)
CHECKPOINTINGS = ("none", "full")
BATCH_TOKENS = 2**22  # a usual global batch of pretraining: Llama 2 used 4M tokens, Llama 3 began with it
MANY = 64  # counts; the usual sweep has half as many
UNEVEN = 0.15  # whole micro-steps may make the global batch so much larger or smaller
PAYS = 0.5  # an added GPU must bring this share of what a GPU of the best count brings


@dataclass(frozen=True)
class Question:
    """What is swept. ``sequences`` is the global batch; None lets it grow with the GPUs at a fixed accumulation."""

    model: ModelSpec
    cluster: Cluster  # one node: its card, its size and the facts that were given
    tokens: float
    fields: Mapping[str, Any]
    sequences: int | None
    counts: tuple[int, ...]
    strategies: tuple[str, ...] = STRATEGIES
    tflops: float | None = None
    bandwidth: float | None = None


@dataclass(frozen=True)
class Point:
    """The fastest run that fits on one number of GPUs."""

    run: Run
    time: StepTime
    cost: Cost
    verdict: str
    memory_bytes: float

    @property
    def gpus(self) -> int:
        return self.run.ranks

    @property
    def speed(self) -> float:
        """Tokens per second of all GPUs."""
        return self.time.tokens_per_s_per_gpu.expected * self.gpus


@dataclass(frozen=True)
class Plan:
    """Points by count, and what follows from them."""

    question: Question
    points: tuple[Point, ...]
    evaluated: int
    notes: tuple[str, ...]

    @cached_property
    def best_per_gpu(self) -> float:
        return max(p.speed / p.gpus for p in self.points)

    def efficiency(self, point: Point) -> float:
        """Tokens per second and GPU, as a share of the best count's."""
        return point.speed / point.gpus / self.best_per_gpu

    @cached_property
    def knee(self) -> Point | None:
        """The last count whose added GPUs bring at least ``PAYS`` of what those of the best count bring.

        Added to the last count that did: some counts cut the batch badly, and more GPUs pay again.
        """
        last = None
        for point in self.points:
            if last is None or point.speed - last.speed >= PAYS * self.best_per_gpu * (point.gpus - last.gpus):
                last = point
        return last

    @cached_property
    def why(self) -> str:
        """Why the next count does not pay."""
        knee = self.knee
        if knee is None:
            return "no data-parallel strategy fits at any count"
        after = next((p for p in self.points if p.gpus > knee.gpus), None)
        if after is None:
            spent = self.question.sequences is not None and 2 * knee.gpus > self.question.sequences
            limit = (
                "then the global batch has no sequence left for more" if spent else "the largest count that was asked"
            )
            return f"adding GPUs pays up to {knee.gpus}: {limit}"
        load = after.run.workload
        change = after.speed / knee.speed - 1
        faster = f"{abs(change):.0%} {'faster' if change > 0 else 'slower'}"
        return (
            f"from {knee.gpus} to {after.gpus} GPUs the whole becomes {faster}: with "
            f"{load.grad_accum * load.micro_batch * load.seq_len:,} tokens per GPU and step, "
            f"{after.run.strategy.name} spends {_waiting(after)}"
        )

    def plot(self, *, deadline_seconds: float | None = None, budget: float | None = None) -> Figure:
        """Days and cost against the number of GPUs. Raises ``MissingDependency`` without matplotlib."""
        from selector.plots import time_and_cost

        return time_and_cost(self, deadline_seconds=deadline_seconds, budget=budget)

    def meets(self, deadline: float) -> Point | None:
        """Fewest GPUs that are expected to be done in so many seconds."""
        return next((p for p in self.points if p.cost.seconds.expected <= deadline), None)

    def within(self, budget: float) -> Point | None:
        """The fastest run that so much money pays for."""
        paid = [p for p in self.points if p.cost.money is not None and p.cost.money <= budget]
        return max(paid, key=lambda p: p.speed, default=None)

    @cached_property
    def limits(self) -> tuple[Limit, ...]:
        """Where data parallelism alone stops making sense, and why; the one of the fewest GPUs first."""
        return limits(self)

    @property
    def beyond(self) -> int | None:
        """The first count that data parallelism alone does not serve well; None when it serves them all."""
        return self.limits[0].gpus if self.limits else None

    @cached_property
    def layout(self) -> Layout | None:
        """The least model parallelism that fits at that count, by published formulas."""
        if self.beyond is None:
            return None
        node = self.question.cluster
        seq_len = workload(**self.question.fields).seq_len
        found = layouts(self.question.model, self.beyond, node.gpus_per_node, seq_len, 1, node.gpu.memory_bytes)
        return next((f for f in found if f.tensor * f.pipeline > 1), None)


def _waiting(point: Point) -> str:
    """Shares of a step that are not the card's own work, largest first."""
    total, spent = point.time.step_seconds.expected, dict[str, float]()
    for part in point.time.parts:
        if part.resource not in ("compute", "memory bandwidth"):
            spent[part.resource] = spent.get(part.resource, 0.0) + part.seconds
    named = sorted(spent.items(), key=lambda item: -item[1])
    return (
        " and ".join(f"{seconds / total:.0%} on {name}" for name, seconds in named[:2]) or "its step on small batches"
    )


def counts_up_to(most: int, per_node: int) -> tuple[int, ...]:
    """1, 2, 4 ... GPUs of a node, then nodes by halves of octaves: 1, 2, 3, 4, 6, 8, 12 ...

    >>> counts_up_to(64, 8)
    (1, 2, 4, 8, 16, 24, 32, 48, 64)
    """
    found, size = [], 1
    while size < min(per_node, most + 1):
        found.append(size)
        size *= 2
    nodes = sorted({n for e in range(24) for n in (1 << e, 3 << e)})
    return tuple(found + [n * per_node for n in nodes if n * per_node <= most])


def plan(question: Question) -> Plan:
    """The plan. Raises ``NotModelled`` where the card has no rate, ``IllegalCombination`` where nothing is legal."""
    base = workload(**question.fields)
    first = resolve(question.model, replace(question.cluster, gpus_per_node=1, nodes=1), "single", workload=base)
    card = rates_of(first.cluster, first.settings.compute_dtype, question.tflops, question.bandwidth)
    if isinstance(card, Unknown):
        raise NotModelled("no time without " + "; ".join(card.missing))
    sweep = _Sweep(question, base)
    points = tuple(p for p in map(sweep.fastest, watched(question.counts)) if p is not None)
    if not sweep.evaluated:
        raise IllegalCombination("nothing can be planned: " + "; ".join(sorted(sweep.refused)[:3]))
    notes = dict.fromkeys(note for p in points for note in (*p.time.notes, *p.run.cluster.notes))
    return Plan(question, points, sweep.evaluated, tuple(notes))


class _Sweep:
    """Evaluates counts, and what was refused on the way."""

    def __init__(self, question: Question, base: Workload) -> None:
        self.question, self.base = question, base
        self.evaluated = 0
        self.refused: set[str] = set()
        self.asked: dict[tuple[str, int, bool, str, int], tuple[str, float]] = {}
        self.bases: dict[tuple[str, int, bool], Run] = {}

    def fastest(self, gpus: int) -> Point | None:
        """The fastest run that fits on so many GPUs."""
        found: list[tuple[float, int, Run]] = []
        for run in self.runs(gpus):
            self.evaluated += 1
            if not self.could_fit(run):
                continue
            seconds = expected_seconds(run, tflops=self.question.tflops, bandwidth=self.question.bandwidth)
            if seconds is not None:
                found.append((seconds / (run.workload.micro_batch * run.workload.grad_accum), len(found), run))
        for _, _, run in sorted(found, key=lambda item: item[:2]):
            point = self.point(run)
            if point is not None:
                return point
        return None

    def runs(self, gpus: int) -> Iterator[Run]:
        """Every run of the sweep on so many GPUs."""
        node = self.question.cluster
        inside = min(gpus, node.gpus_per_node)
        cluster = replace(node, gpus_per_node=inside, nodes=gpus // inside)
        names = ("single",) if gpus == 1 else self.question.strategies
        loads = tuple(self.loads(gpus))
        for name in names:
            if cluster.nodes == 1 and "hybrid" in name:
                continue
            try:
                one = self.settled(name, cluster)
            except AdvisorError as reason:
                self.refused.add(str(reason))
                continue
            for load in loads:
                if name == EVERY_STEP and load.grad_accum == 1:
                    continue  # the same as without
                yield Run(one.model, cluster, load, one.strategy, one.settings)

    def settled(self, name: str, cluster: Cluster) -> Run:
        """A strategy's run whose model and settings serve every count of nodes of one size: resolved once."""
        key = name, cluster.gpus_per_node, cluster.nodes > 1
        if key not in self.bases:
            self.bases[key] = resolve(self.question.model, cluster, name, workload=self.base)
        check_ranks(self.bases[key].strategy, cluster)
        return self.bases[key]

    def loads(self, gpus: int) -> Iterator[Workload]:
        """Micro-batches and checkpointing, as given or swept, cut so that the global batch is kept."""
        given, sequences = self.question.fields, self.question.sequences
        micros = (self.base.micro_batch,) if "micro_batch" in given else MICRO_BATCHES
        checkpointings = (self.base.checkpointing,) if "checkpointing" in given else CHECKPOINTINGS
        for micro in micros:
            if sequences is not None and gpus * micro > sequences:
                continue
            steps = self.base.grad_accum if sequences is None else round(sequences / (gpus * micro))
            if sequences is not None and abs(steps * gpus * micro - sequences) > UNEVEN * sequences:
                continue
            for kind in checkpointings:
                yield _cut(self.base, micro, steps, kind)

    def could_fit(self, run: Run) -> bool:
        """Whether the published formulas, which say too little, leave a chance."""
        return rough_bytes(run) <= run.cluster.gpu.memory_bytes

    def memory(self, run: Run) -> tuple[str, float]:
        """Verdict and bytes; where many counts are asked, those of the fewest GPUs of the same quarter octave."""
        load, step = run.workload, run.ranks
        if len(self.question.counts) > MANY:
            step = int(4 * log2(run.ranks))
        key = run.strategy.name, load.micro_batch, load.grad_accum > 1, load.checkpointing, step
        found = self.asked.get(key)
        if found is None:
            estimate = Estimate(resolve(self.question.model, run.cluster, run.strategy, workload=load))
            found = self.asked[key] = estimate.verdict, estimate.gpu.expected
        return found

    def point(self, run: Run) -> Point | None:
        """The run with its time and cost, or None when it does not fit."""
        question = self.question
        try:
            verdict, needed = self.memory(run)
        except AdvisorError as reason:
            self.refused.add(str(reason))
            return None
        if verdict == "no":
            return None
        filled = needed / run.cluster.gpu.memory_bytes
        time = step_time(run, tflops=question.tflops, bandwidth=question.bandwidth, filled=filled)
        assert isinstance(time, StepTime)
        power = gpu_fact(run.cluster.gpu, "board_power_w")
        spent = cost(question.tokens, time.tokens_per_s_per_gpu, run.ranks, run.cluster.price_per_gpu_hour, power)
        return Point(run, time, spent, verdict, needed)


@lru_cache(maxsize=4096)
def _cut(base: Workload, micro: int, steps: int, checkpointing: str) -> Workload:
    return replace(base, micro_batch=micro, grad_accum=max(1, steps), checkpointing=checkpointing)


def strategy_names(given: Sequence[str] | None) -> tuple[str, ...]:
    """The strategies to sweep, canonical."""
    return tuple(parse_strategy(name).name for name in given) if given else STRATEGIES
