"""Every strategy with the best settings that the user left free, or the number that rules it out.

A value that the user gave never changes. Free are: the micro-batch and accumulation (the global batch stays),
checkpointing, the loss kernel, the optimizer, and, where allowed, the method.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from estimators.errors import AdvisorError
from estimators.memory import Estimate, default_strategies
from estimators.memory import estimate as estimate_one
from estimators.strategy import Strategy, parse_strategy
from estimators.time.constants import NEAR_FULL
from estimators.units import GIB, gib
from estimators.values import dataclass, field, replace
from selector.cost import Cost, cost_of, offload_rank
from selector.launch import FROM_FILES
from selector.question import Question
from selector.watched import watched

# The worse the verdict, the later the candidate; `unknown` is not a no, and is said.
VERDICT_RANK = {"fits": 0, "tight": 1, "unknown": 1, "no": 2}
EIGHT_BIT = "adamw-8bit"
UNKNOWN_ROOM = 0.5  # of the card, for parameters, gradients and states: the rest is left to activations nobody counted
# The loss that saves logits, where it is not the fused one: what the stack's own files have a word for.
FRUGAL_LOSS = {"torchtitan": "chunked", "torchtune": "chunked", "llamafactory": ""}
NEARLY = 1.25  # of the card: within it smaller buffers may help
# Buffers of a tenth of the engine's defaults, or less: slower by more, smaller messages and optimizer calls.
SMALL_BUFFERS = {
    "zero1": {"reduce_bucket_size": 50_000_000, "allgather_bucket_size": 50_000_000},
    "zero2": {"reduce_bucket_size": 50_000_000, "allgather_bucket_size": 50_000_000},
    "zero3": {"reduce_bucket_size": 10_000_000, "sub_group_size": 100_000_000},
}
EVERY_STEP = {"sync_each_batch": True}
# Host RAM of machines with GPUs, where nobody said how much there is. Usual: AWS p5, p5e, p5en and p6-b200 of 8 cards
# (torchx/specs/named_resources_aws.py). Most: 32 module slots (Dell PowerEdge XE9680, installation manual) of 256 GB, the
# largest module of such servers' tables (PowerEdge R860, installation manual).
USUAL_HOST_BYTES = 2048 * GIB
MOST_HOST_BYTES = 8192 * GIB


@dataclass(frozen=True, eq=False, slots=True)
class Candidate:
    """A strategy with settings. ``settings`` are the free values that were chosen, all of them."""

    estimate: Estimate
    method: str
    method_rank: int
    settings: Mapping[str, Any]
    cost: Cost

    @property
    def strategy(self) -> Strategy:
        return self.estimate.run.strategy

    @property
    def name(self) -> str:
        return self.estimate.strategy

    @property
    def verdict(self) -> str:
        return self.estimate.verdict

    @property
    def tier(self) -> tuple[bool, int, float, int]:
        """What comes before any speed: host RAM that machines usually have, where nobody said how much there is; no
        offload that is not needed; it fits for sure; by the preferred method.

        A tight run without offload stands before a sure one with it: it is expected to fit, so nothing is needed. Where
        activations are not known and little room is left for them, the more room the better.
        """
        verdict: float = VERDICT_RANK[self.verdict]
        if self.verdict == "unknown" and not has_room(self.estimate):
            verdict += self.estimate.gpu.process.expected / self.estimate.gpu.capacity
        return improbable(self.estimate), offload_rank(self.strategy), verdict, self.method_rank

    @property
    def other_optimizer(self) -> bool:
        """Whether it fits only with an optimizer that nobody asked for."""
        return "optimizer" in self.settings


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a strategy is out; ``estimate`` is its most frugal variant where memory was the reason."""

    strategy: str
    why: str
    estimate: Estimate | None = field(default=None, compare=False)

    @property
    def excess(self) -> float:
        """How many times the card it needs; infinite where memory was not the reason."""
        return self.estimate.gpu.expected / self.estimate.gpu.capacity if self.estimate else float("inf")

    @property
    def reason(self) -> str:
        """``the GPU at step``, ``host RAM`` or ``NVMe``; empty where memory was not the reason."""
        return self.estimate.reason if self.estimate else ""


def candidates(question: Question) -> tuple[list[Candidate], list[Rejection]]:
    """All legal strategies, or the one that the user named, each with its best settings, and what was rejected.

    A less preferred method is tried only while nothing fits for sure without offload: before that it cannot win.
    """
    rejected: dict[str, Rejection] = {}
    found: list[Candidate] = []
    tried: list[Strategy] = []
    for name in names(question):
        strategy = parse_strategy(name)
        why = pointless(question, strategy) if question.strategy is None else ""
        if why:
            rejected[name] = Rejection(name, why)
        else:
            tried.append(strategy)
    for rank, method in enumerate(question.methods):
        for strategy in watched(tried):
            answer = writable(question, best_settings(question, strategy, method, rank), method, rank)
            if isinstance(answer, Candidate):
                found.append(answer)
                continue
            before = rejected.get(strategy.name, answer)
            rejected[strategy.name] = min((answer, before), key=lambda r: r.excess)
            smaller = with_knobs(question, strategy, answer, method, rank)
            if smaller is not None:
                found.append(smaller)
        if any(c.tier[:3] == (False, 0, 0) for c in found):
            break
    kept = {c.name for c in found}
    by_size = sorted(rejected.values(), key=lambda r: r.excess)  # those that memory rules out first, the nearest of all
    return found, [r for r in by_size if r.strategy not in kept]


def writable(question: Question, answer: Candidate | Rejection, method: str, rank: int) -> Candidate | Rejection:
    """A candidate that its stack has words for: as it is, in plain bf16 where nobody asked for a precision, or out.

    Asked only of stacks with files of their own; our scripts can be written for every strategy of theirs. A strategy
    that the user named stays in any case: what it lacks is said when it is written.
    """
    if isinstance(answer, Rejection):
        return answer
    why = no_words(answer.estimate)
    if not why:
        return answer
    if "precision" not in question.fields and question.cluster.gpu.bf16 is not False:
        plain = best_settings(question.changed(precision="bf16"), answer.strategy, method, rank)
        if isinstance(plain, Candidate) and not no_words(plain.estimate):
            return replace(plain, settings={"precision": "bf16", **plain.settings})
    return answer if question.strategy is not None else Rejection(answer.name, why)


def no_words(estimate: Estimate) -> str:
    """Why a run's stack cannot be told to do it; empty where it can."""
    if estimate.run.workload.stack not in FROM_FILES:
        return ""
    from selector.configs.bundle import bundle

    try:
        bundle(estimate)
    except AdvisorError as reason:
        return str(reason)
    return ""


def with_knobs(question: Question, strategy: Strategy, missed: Rejection, method: str, rank: int) -> Candidate | None:
    """A strategy that does not fit, again with other knobs and the same mathematics.

    ZeRO that misses by little: smaller buffers and sub-groups. FSDP that accumulates: reduction in every micro-step,
    so that gradients are kept sharded; accelerate and torch reduce in the last one only, and keep them whole till then.
    """
    if question.strategy is not None or not missed.reason.startswith("the GPU") or missed.estimate is None:
        return None
    knobs: Mapping[str, Any] | None = SMALL_BUFFERS.get(strategy.base) if missed.excess <= NEARLY else None
    run = missed.estimate.run
    if strategy.engine in ("fsdp1", "fsdp2") and run.workload.grad_accum > 1:
        knobs = None if run.settings.knobs.get("sync_each_batch") else EVERY_STEP
    if knobs is None:
        return None
    smaller = replace(strategy, options={**knobs, **strategy.options})
    answer = writable(question, best_settings(question, smaller, method, rank), method, rank)
    return answer if isinstance(answer, Candidate) else None


def names(question: Question) -> Iterator[str]:
    """Canonical names of the strategies to try."""
    if question.strategy is not None:
        yield question.strategy.name
        return
    yield from dict.fromkeys(default_strategies(question.cluster, everything=True))


def pointless(question: Question, strategy: Strategy) -> str:
    """Why a strategy is not worth an estimate; empty where it is."""
    cluster = question.cluster
    offloaded = bool(strategy.optimizer or strategy.params)
    if strategy.base == "single" and cluster.ranks > 1:
        return f"one GPU of {cluster.ranks}"
    if cluster.ranks == 1 and strategy.base != "single" and not offloaded:
        return "one GPU: there is nothing to shard over, `single` holds the same"
    if strategy.base in ("zero0", "fsdp1-no-shard"):
        return "shards nothing: `ddp` does the same"
    if strategy.sharding == "hybrid-shard" and cluster.nodes == 1:
        return "one node: hybrid sharding is full sharding"
    if strategy.engine == "fsdp1" and question.policy == "current":
        return "FSDP1 is deprecated and holds blocks back: FSDP2 in its place (policy documents keeps it)"
    if "nvme" in (strategy.optimizer, strategy.params) and not cluster.nvme_bytes:
        return "no NVMe was given; --nvme 4TB says how much a node has"
    return ""


def best_settings(question: Question, strategy: Strategy, method: str, rank: int = 0) -> Candidate | Rejection:
    """The settings of a strategy that fit at the least cost; the fewest concessions first.

    Tried in order: the defaults; the fused loss; 8-bit AdamW on top. Inside each: with and without recomputing, and the
    largest micro-batch, what leaves room on the card before what fills it. The first group with something that fits
    ends the search; a tight one is kept meanwhile.
    """
    fixed = {**question.fields, "method": method}
    groups = list(concessions(fixed))
    try:
        frugal, last = frugal_estimate(question, strategy, fixed, groups)
    except AdvisorError as reason:
        if question.strategy is not None:  # the user named it: then it is the question that is wrong
            raise
        return Rejection(strategy.name, str(reason))
    if frugal.verdict == "no" or (question.strategy is None and beyond_any_host(frugal)):
        return Rejection(strategy.name, shortage(frugal, last), frugal)
    if frugal.verdict == "unknown":
        asked = as_asked(question, strategy, fixed, rank)
        return asked if asked.verdict != "no" else Candidate(frugal, method, rank, last, cost_of(frugal))
    tight: Candidate | None = None
    for group in groups:
        found = [c for c in variants(question, strategy, fixed, group, rank) if c.verdict != "no"]
        sure = [c for c in found if c.verdict == "fits"]
        if sure:
            roomy = [c for c in sure if comfortable(c.estimate)]
            return (
                min(roomy, key=lambda c: c.cost) if roomy else min(sure, key=lambda c: c.estimate.gpu.process.expected)
            )
        if found and tight is None:
            tight = min(found, key=lambda c: c.cost)
    return tight or Candidate(frugal, method, rank, last, cost_of(frugal))


def as_asked(question: Question, strategy: Strategy, fixed: Mapping[str, Any], rank: int) -> Candidate:
    """The defaults and the smallest micro-batch: where nobody can say what fits, nothing is tuned."""
    settings = batch_settings(question, *question.batches[0])
    estimate = evaluate(question, strategy, {**fixed, **settings})
    return Candidate(estimate, str(fixed["method"]), rank, settings, cost_of(estimate))


def concessions(fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Groups of free kernel settings, from none to all; what the user gave is in none of them."""
    yield {}
    kernel = FRUGAL_LOSS.get(str(fixed.get("stack")), "fused")
    loss = {} if "loss" in fixed or not kernel else {"loss": kernel}
    if loss:
        yield loss
    if "optimizer" not in fixed:
        yield {**loss, "optimizer": EIGHT_BIT}


def frugal_estimate(
    question: Question, strategy: Strategy, fixed: Mapping[str, Any], groups: list[dict[str, Any]]
) -> tuple[Estimate, dict[str, Any]]:
    """The variant that needs least, with its settings: where it fails, nothing of this strategy fits."""
    micro, steps = question.batches[0]
    saved = {} if "checkpointing" in fixed else {"checkpointing": "full"}
    reason: AdvisorError | None = None
    for group in reversed(groups):
        settings = {**group, **saved, **batch_settings(question, micro, steps)}
        try:
            return evaluate(question, strategy, {**fixed, **settings}), settings
        except AdvisorError as problem:  # 8-bit states are not for every engine: the next smaller group
            reason = problem
    assert reason is not None
    raise reason


def variants(
    question: Question, strategy: Strategy, fixed: Mapping[str, Any], group: Mapping[str, Any], rank: int
) -> Iterator[Candidate]:
    """One candidate per way of checkpointing, with the largest micro-batch that fits, else the smallest."""
    for way in [None] if "checkpointing" in fixed else ["none", "full"]:
        chosen = {**group, **({"checkpointing": way} if way else {})}
        try:
            yield largest(question, strategy, fixed, chosen, rank)
        except AdvisorError:
            continue


def largest(
    question: Question, strategy: Strategy, fixed: Mapping[str, Any], chosen: Mapping[str, Any], rank: int
) -> Candidate:
    """The largest micro-batch that leaves room on the card, found by bisection: need never falls as it grows."""
    batches = question.batches

    def at(index: int) -> Candidate:
        settings = {**chosen, **batch_settings(question, *batches[index])}
        estimate = evaluate(question, strategy, {**fixed, **settings})
        return Candidate(estimate, str(fixed["method"]), rank, settings, cost_of(estimate))

    best = at(0)
    low, high = 0, len(batches) - 1
    while low < high and comfortable(best.estimate):
        middle = (low + high + 1) // 2
        tried = at(middle)
        if comfortable(tried.estimate):
            low, best = middle, tried
        else:
            high = middle - 1
    return best


def comfortable(estimate: Estimate) -> bool:
    """It fits and leaves a tenth of the card: above that the allocator may retry, which costs up to a third.

    Source: ``estimators.time.constants.NEAR_FULL``.
    """
    gpu = estimate.gpu
    return estimate.verdict == "fits" and gpu.process.expected <= NEAR_FULL.value * gpu.capacity


def has_room(estimate: Estimate) -> bool:
    """``comfortable``; or, where activations are not known, all that is known takes half of the card at most."""
    gpu = estimate.gpu
    if estimate.verdict == "unknown":
        return gpu.process.expected <= UNKNOWN_ROOM * gpu.capacity
    return comfortable(estimate)


def batch_settings(question: Question, micro: int, steps: int) -> dict[str, int]:
    """Micro-batch and accumulation, where they follow from a global batch."""
    return {} if question.global_batch is None else {"micro_batch": micro, "grad_accum": steps}


def evaluate(question: Question, strategy: Strategy, fields: Mapping[str, Any]) -> Estimate:
    """One estimate; the place where a test may put another estimator."""
    return estimate_one(question.model, question.cluster, strategy, **fields)


def improbable(estimate: Estimate) -> bool:
    """Whether nobody said how much host RAM there is, and it needs more than machines usually have."""
    return estimate.run.cluster.host_bytes is None and estimate.host.expected > USUAL_HOST_BYTES


def beyond_any_host(estimate: Estimate) -> bool:
    """Whether nobody said how much host RAM there is, and no machine has what it needs."""
    return estimate.run.cluster.host_bytes is None and estimate.host.expected > MOST_HOST_BYTES


def shortage(estimate: Estimate, settings: Mapping[str, Any]) -> str:
    """What is missing, with numbers: the place, need and capacity, the largest term, and what was already tried."""
    gpu, cluster = estimate.gpu, estimate.run.cluster
    tried = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in settings.items())
    after = f", even with {tried}" if tried else ""
    if estimate.verdict != "no" and beyond_any_host(estimate):
        most = gib(MOST_HOST_BYTES, 0)
        return f"host RAM: {gib(estimate.host.expected, 0)} GiB per node, more than machines have ({most}){after}"
    if estimate.reason == "host RAM":
        return f"host RAM: {gib(estimate.host.expected, 0)} GiB per node of {gib(cluster.host_bytes or 0, 0)}{after}"
    if estimate.reason == "NVMe":
        return f"NVMe: {gib(estimate.nvme_bytes, 0)} GiB per node of {gib(cluster.nvme_bytes or 0, 0)}{after}"
    binds = max(estimate.instants, key=lambda i: i.gpu_bytes)  # save among them
    process = binds.gpu_bytes + sum(o.expected for o in gpu.runtime)
    digits = 1 if gib(process, 1) != gib(gpu.capacity, 1) else 3
    term = max((t for t in binds.terms if t.place == "gpu"), key=lambda t: t.bytes, default=None)
    most = f", {term.name} {gib(term.bytes, 1)}" if term else ""
    return f"GPU: {gib(process, digits)} GiB of {gib(gpu.capacity, digits)} at {binds.name}{most}{after}"
