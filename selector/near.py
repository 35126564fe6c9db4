"""When nothing fits: the nearest misses, and the smallest changes that work, each verified by the estimator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from estimators.cluster import FAMILIES, Cluster, parse_cluster
from estimators.errors import AdvisorError
from estimators.memory import Estimate
from estimators.strategy import parse_strategy
from estimators.units import gib, round_up
from estimators.values import dataclass, replace
from selector.candidates import Candidate, Rejection, candidates, evaluate, improbable
from selector.question import Question
from selector.ranking import rank
from selector.reasons import needs_host

TOKENS = 256  # shorter sequences are tried in multiples of it
MOST_TIMES = 64  # GPUs are multiplied up to so many times
NODE = 8  # GPUs of a node, where more are needed than the node has
HOST_STEP = 32 * 10**9
NEAREST = "nearest miss: "
ENOUGH = 6  # ways out that an answer shows


@dataclass(frozen=True, eq=False, slots=True)
class Alternative:
    """Another answer: a strategy with changes to the question or its settings, its estimate, and why it stands here."""

    strategy: str
    changes: dict[str, Any]
    estimate: Estimate
    why: str


def ways_out(question: Question, rejected: Sequence[Rejection]) -> tuple[Alternative, ...]:
    """Verified changes, the smallest first; then the nearest misses as they are."""
    tries = (
        *precision(question), *methods(question), *shorter(question, rejected), *host(question, rejected),
        *bigger(question),
    )  # fmt: skip
    found = verified(tries) or verified(two_at_once(question))
    return (*found[:ENOUGH], *nearest(rejected))


FLAGS = {"gpus": "--gpus", "method": "--method", "seq_len": "--seq-len", "host_memory": "--host-memory",
         "nvme": "--nvme", "precision": "--precision"}  # fmt: skip


def instead_words(found: Sequence[Alternative], command: str) -> str:
    """The first change that works, as flags; where none does, what came nearest."""
    for way in found:
        words = " ".join(f"{FLAGS[name]} {value}" for name, value in way.changes.items() if name in FLAGS)
        if words and not way.why.startswith(NEAREST):
            return f"with {words} it does ({way.strategy}, {way.why}); ask what fits: {command}"
    near = next((way for way in found if way.why.startswith(NEAREST)), None)
    missed = f"; {near.strategy} came nearest ({near.why.removeprefix(NEAREST)})" if near else ""
    return f"no single change was found that mends it{missed}; ask what fits: {command}"


def verified(tries: Iterable[tuple[dict[str, Any], Question]]) -> list[Alternative]:
    """Those changes after which something fits."""
    found: list[Alternative] = []
    for changes, changed in tries:
        answer = solved(changed)
        if answer is not None:
            settings = {k: v for k, v in answer.settings.items() if k not in changes}
            gpu = answer.estimate.gpu
            why = f"{answer.verdict}: {gib(gpu.process.expected, 1)} of {gib(gpu.capacity, 1)} GiB"
            if needs_host(answer.estimate):
                why += f", and {gib(answer.estimate.host.expected, 0)} GiB of host RAM per node"
            found.append(Alternative(answer.name, {**changes, **settings}, answer.estimate, why))
    return found


def two_at_once(question: Question) -> Iterator[tuple[dict[str, Any], Question]]:
    """Where no single change works: adapters, on more or on larger cards."""
    for first, changed in methods(question):
        for second, both in bigger(changed):
            yield {**first, **second}, both


def precision(question: Question) -> Iterator[tuple[dict[str, Any], Question]]:
    """fp16 in place of a bf16 that the card does not have."""
    given = str(question.fields.get("precision", ""))
    if question.cluster.gpu.bf16 is False and given.startswith("bf16"):
        twin = given.replace("bf16", "fp16")
        yield {"precision": twin}, question.changed(precision=twin)


def nearest(rejected: Sequence[Rejection], count: int = 2) -> tuple[Alternative, ...]:
    """What came closest to fitting, unchanged."""
    misses = sorted((r for r in rejected if r.estimate), key=lambda r: r.excess)[:count]
    return tuple(Alternative(r.strategy, {}, r.estimate, f"{NEAREST}{r.why}") for r in misses if r.estimate)


def solved(question: Question) -> Candidate | None:
    """The answer to a changed question, or None; host RAM that nobody spoke of may be what machines usually have."""
    try:
        found, _ = candidates(question)
    except AdvisorError:
        return None
    choice = rank(question, found).choice
    if choice is None or choice.verdict == "no":
        return None
    return None if improbable(choice.estimate) else choice


def methods(question: Question) -> Iterator[tuple[dict[str, Any], Question]]:
    """Adapters in place of full training."""
    if question.methods[0] == "full":
        for method in ("lora", "qlora"):
            if method not in question.methods:
                yield {"method": method}, question.changed(method=method, allow=())


def shorter(question: Question, rejected: Sequence[Rejection]) -> Iterator[tuple[dict[str, Any], Question]]:
    """Fewer tokens: the longest sequence, in steps of ``TOKENS``, at which some strategy that nearly fits does."""
    best = 0
    for miss in sorted((r for r in rejected if r.estimate), key=lambda r: r.excess)[:3]:
        assert miss.estimate is not None
        work = miss.estimate.run.workload
        free = ("method", "checkpointing", "loss", "optimizer", "micro_batch", "grad_accum")
        fields = {**question.fields, **{name: getattr(work, name) for name in free}}
        low, high = 0, (work.seq_len - 1) // TOKENS
        while low < high:
            middle = (low + high + 1) // 2
            changed = {**fields, "seq_len": middle * TOKENS}
            fits = evaluate(question, parse_strategy(miss.strategy), changed).verdict != "no"
            low, high = (middle, high) if fits else (low, middle - 1)
        best = max(best, low * TOKENS)
    if best:
        yield {"seq_len": best}, question.changed(seq_len=best)


def host(question: Question, rejected: Sequence[Rejection]) -> Iterator[tuple[dict[str, Any], Question]]:
    """More host RAM, where nothing else was missing: the least that works, in steps of ``HOST_STEP``."""
    short_of = [r.estimate.host.expected for r in rejected if r.estimate and r.estimate.reason == "host RAM"]
    if short_of:
        enough = round_up(round(min(short_of)), HOST_STEP)
        wider = replace(question.cluster, host_bytes=enough)
        yield {"host_memory": f"{enough // 10**9}GB"}, question.changed(cluster=wider)


def bigger(question: Question) -> Iterator[tuple[dict[str, Any], Question]]:
    """More GPUs of the kind, then as many of a larger card; the first of each that works."""
    if question.strategy is not None:
        question = replace(question, strategy=None)
    for clusters in (more_of_them(question.cluster), larger_cards(question.cluster)):
        for text, cluster in clusters:
            changed = question.changed(cluster=cluster)
            try:
                works = solved(changed) is not None
            except AdvisorError:
                continue
            if works:
                yield {"gpus": text}, changed
                break
    if question.cluster.nvme_bytes is None:
        disk = replace(question.cluster, nvme_bytes=4 * 10**12)
        yield {"nvme": "4TB"}, question.changed(cluster=disk)


def flags(cluster: Cluster) -> str:
    """The facts of a cluster as flags: what a command must repeat to ask about the same machine."""
    found = []
    try:
        usual = parse_cluster(cluster.gpu.label).gpu.memory_bytes
    except AdvisorError:
        usual = None
    if usual != cluster.gpu.memory_bytes:
        found.append(f"--gpu-memory {cluster.gpu.memory_bytes / 1e9:g}GB")
    if cluster.host_bytes is not None:
        found.append(f"--host-memory {cluster.host_bytes / 1e9:g}GB")
    if cluster.nvme_bytes is not None:
        found.append(f"--nvme {cluster.nvme_bytes / 1e9:g}GB")
    rates = (("--tflops", cluster.tflops), ("--bandwidth", cluster.bandwidth_gb_per_s))
    found += [f"{flag} {value:g}" for flag, value in rates if value is not None]
    return "".join(f" {flag}" for flag in found)


def spelled(cluster: Cluster) -> str:
    nodes = f"{cluster.nodes}x" if cluster.nodes > 1 else ""
    return f"{nodes}{cluster.gpus_per_node}x{cluster.gpu.label}"


def more_of_them(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    """Twice, four times ... the GPUs: the node is filled to eight first."""
    times = 2
    while times <= MOST_TIMES:
        total = cluster.ranks * times
        per_node = cluster.gpus_per_node if cluster.nodes > 1 or cluster.gpus_per_node > NODE else min(total, NODE)
        if total % per_node == 0:
            grown = replace(cluster, gpus_per_node=per_node, nodes=total // per_node)
            yield spelled(grown), grown
        times *= 2


def larger_cards(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    """Cards with more memory, the smallest first."""
    cards = {}
    for family in ("a10", "a40", "l40s", "a100", "h100", "h200", "b200", "b300", "mi300x"):
        card = parse_cluster(FAMILIES[family][0]).gpu
        cards[card.id] = card
    for card in sorted(cards.values(), key=lambda c: c.memory_bytes):
        if card.memory_bytes > cluster.gpu.memory_bytes * 1.1:
            grown = replace(cluster, gpu=card, tflops=None, bandwidth_gb_per_s=None)
            yield spelled(grown), grown
