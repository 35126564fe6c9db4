"""Why: the sentences of an answer, each with the numbers that it rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from estimators.memory import Estimate
from estimators.time.towers import only_images
from estimators.units import GIB, gib, readable
from estimators.values import replace
from selector.candidates import USUAL_HOST_BYTES, Candidate, Rejection, comfortable, improbable
from selector.cost import offload_rank, offload_words, tokens_per_second
from selector.question import Question
from selector.ranking import TREE_MARGIN, Ranking
from selector.speed import speed_sentences
from selector.tree import Situation, read

ENGINE_WORDS = {"torch": "one process", "ddp": "DDP", "fsdp1": "FSDP1", "fsdp2": "FSDP", "deepspeed": "DeepSpeed"}
EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")
EXPERTS = (
    "mixture of experts: expert parallelism is not among the strategies here and was measured faster (ZeRO-1 with it "
    "57.4k tokens/s, ZeRO-3 27.9k, a 35B on 16 H100: DeepSpeed PR8064)"
)
HOST_WORTH_A_WORD = 64 * GIB  # the least that a machine with a training card has, near enough
FILLED = "that fills the card, where the allocator may retry"
LEAF_WORDS = {"ddp": "DDP", "fsdp": "FSDP", "deepspeed": "DeepSpeed"}


def binding(estimate: Estimate) -> str:
    """The instant that needs most, and the term that is largest in it."""
    terms = [t for t in estimate.peak.terms if t.place == "gpu"]
    most = max(terms, key=lambda t: t.bytes) if terms else None
    return estimate.peak.name + (f" binds, mostly {most.name} ({size(most.bytes)})" if most else "")


def size(num_bytes: int) -> str:
    """GiB with one digit, a smaller unit where that would read 0.0."""
    return f"{gib(num_bytes, 1)} GiB" if num_bytes >= GIB / 20 else readable(num_bytes)


def use_of_card(estimate: Estimate) -> str:
    """``31.2 of 79.1 GiB``: the whole process against what the card reports."""
    return against(estimate.gpu.process.expected, estimate.gpu.capacity)


def left_out(estimate: Estimate) -> str:
    """What the number before it does not hold."""
    return " without activations" if estimate.verdict == "unknown" else ""


def against(num_bytes: float, capacity: int) -> str:
    """``31.2 of 79.1 GiB``, with as many digits as tell the two apart (three at most)."""
    digits = next((d for d in (1, 2) if gib(num_bytes, d) != gib(capacity, d)), 3)
    return f"{gib(num_bytes, digits)} of {gib(capacity, digits)} GiB"


def reasons(question: Question, ranking: Ranking, rejected: Sequence[Rejection]) -> list[str]:
    """Everything that led to the choice, most important first."""
    choice = ranking.choice
    if choice is None:
        return [tree_sentence(ranking), *question.notes]
    found = [tree_sentence(ranking)]
    if question.strategy is not None:
        found.append(f"{choice.name} is your choice; only its free settings were looked for")
    elif not ranking.follows_tree:
        found.append(against_tree(question, ranking, rejected))
    found += verdict_sentences(choice)
    found += host_sentences(choice)
    if choice.verdict == "tight" and ranking.sure is not None:
        found.append(f"should it fail, {ranking.sure.name} fits for sure ({tier_words(ranking.sure)})")
    if question.strategy is None:
        found += need_sentences(choice, ranking, rejected)
        found += faster_sentences(question, choice, ranking)
    found += settings_sentences(question, choice, ranking)
    if any(question.model.config.get(name) for name in EXPERT_KEYS):
        found.append(EXPERTS)
    return [*found, *question.notes]


def tree_sentence(ranking: Ranking) -> str:
    reading = ranking.reading
    way = ", ".join(f"{s.id.replace('_', ' ')} {s.answer}" for s in reading.path)
    return f"the tree ({reading.policy}) says {LEAF_WORDS[reading.leaf]}: {way}"


def against_tree(question: Question, ranking: Ranking, rejected: Sequence[Rejection]) -> str:
    """Why another engine than the tree's is better here, with numbers."""
    choice, tree, reading = ranking.choice, ranking.tree, ranking.reading
    assert choice is not None
    says = f"the tree would say {tree.name if tree else reading.strategy}"
    if tree is None:
        same = [r for r in rejected if r.strategy.split(":")[0].split("+")[0] == reading.strategy]
        own = min(same, key=lambda r: r.strategy != reading.strategy, default=None)
        why = own.why if own else "no strategy of that engine is legal"
        return f"{says}, which is out here ({why}); {choice.name} is not"
    if tree.tier != choice.tier or tree.other_optimizer > choice.other_optimizer:
        return f"{says} ({tier_words(tree)}{slower(tree, choice)}); {choice.name} is better here ({tier_words(choice)})"
    if question.goal == "simplest":
        return f"{says}; {choice.name} is simpler"
    if tree.strategy.is_sharded and not choice.strategy.is_sharded and tree.cost.within(choice.cost, TREE_MARGIN):
        return f"{says}; {choice.name} is better here: all fits on each GPU ({use_of_card(choice.estimate)}) unsharded"
    return (
        f"{says}; {choice.name} is better here: {tree.name} costs {tree.cost.against(choice.cost)}, more than the "
        f"{TREE_MARGIN:.0%} that the tree is given"
    )


def slower(tree: Candidate, choice: Candidate) -> str:
    """How much slower the tree's is, where both speeds are known."""
    rates = [tokens_per_second(c.estimate) for c in (tree, choice)]
    if not rates[0] or not rates[1] or rates[0] >= rates[1]:
        return ""
    return f", {rates[0]:,.0f} tokens per second and GPU instead of {rates[1]:,.0f}"


def tier_words(candidate: Candidate) -> str:
    words = [candidate.verdict, use_of_card(candidate.estimate)]
    if moved := offload_words(candidate.strategy):
        words.append(moved)
    if candidate.method != "full":
        words.append(candidate.method)
    if "optimizer" in candidate.settings:
        words.append(f"only with {candidate.settings['optimizer']}")
    return ", ".join(words)


def verdict_sentences(choice: Candidate) -> Iterator[str]:
    estimate = choice.estimate
    if choice.verdict == "tight":
        gpu = estimate.gpu
        if gpu.process.high < gpu.capacity:
            yield f"tight: it is expected to fit, but may need up to {against(gpu.process.high, gpu.capacity)}"
        else:
            spare = size(max(0, round(gpu.capacity - gpu.process.expected)))
            yield f"tight: it is expected to fit with {spare} to spare, which is less than the estimate may be wrong by"
    elif choice.verdict == "unknown":
        yield f"unknown whether it fits: {estimate.reason}; it was not ruled out"
    elif choice.verdict == "no":
        yield f"it does not fit ({estimate.reason}): see the alternatives"
    yield from speed_sentences(estimate)


def needs_host(estimate: Estimate) -> bool:
    """Whether an answer stands on host RAM that nobody spoke of: it offloads, or loading takes more than the cards have."""
    cluster = estimate.run.cluster
    cards = estimate.gpu.capacity * cluster.gpus_per_node
    return cluster.host_bytes is None and (
        offload_rank(estimate.run.strategy) > 0 or estimate.host.expected > max(cards, HOST_WORTH_A_WORD)
    )


def host_sentences(choice: Candidate) -> Iterator[str]:
    """How much host RAM is needed, where nobody said how much there is."""
    estimate = choice.estimate
    if not needs_host(estimate):
        return
    yield f"needs {gib(estimate.host.expected, 0)} GiB of host RAM per node, and nobody said how much there is"
    if improbable(estimate):
        yield f"that is more than the {gib(USUAL_HOST_BYTES, 0)} GiB that rented nodes of 8 GPUs usually have"


def need_sentences(choice: Candidate, ranking: Ranking, rejected: Sequence[Rejection]) -> Iterator[str]:
    """Why sharding, and why offload: what fails without."""
    strategy = choice.strategy
    whole = "single" if choice.estimate.run.ranks == 1 else "ddp"
    missed = {r.strategy: r.why for r in rejected}
    if strategy.is_sharded and not offload_rank(strategy) and whole in missed:
        yield f"sharded because {whole} does not fit: {missed[whole]}"
    elif strategy.is_sharded and not offload_rank(strategy):
        yield from sharded_sentences(choice, ranking, whole)
    if offload_rank(strategy):
        resident = [r for r in rejected if r.estimate and "+" not in r.strategy]
        nearest = min(resident, key=lambda r: r.excess, default=None)
        if nearest is not None:
            yield f"offloaded because nothing fits without; the nearest, {nearest.strategy}: {nearest.why}"


def sharded_sentences(choice: Candidate, ranking: Ranking, whole: str) -> Iterator[str]:
    """What sharding buys where the model fits whole."""
    other = next((c for c in ranking.order if c.name == whole), None)
    if other is not None:
        why = "what it frees pays for itself" if comfortable(other.estimate) else FILLED
        yield f"sharded although {whole} fits too ({tier_words(other)}{slower(other, choice)}): {why}"


def faster_sentences(question: Question, choice: Candidate, ranking: Ranking) -> Iterator[str]:
    """What is expected to be faster and stands lower all the same, because it offloads more."""
    own, rank = tokens_per_second(choice.estimate), offload_rank(choice.strategy)
    others = [c for c in ranking.order if offload_rank(c.strategy) > rank]
    fitting = [c for c in others if c.verdict == "fits" and c.method == choice.method]
    rates = [(tokens_per_second(c.estimate) or 0.0, c) for c in fitting]
    rate, best = max(rates, key=lambda pair: pair[0], default=(0.0, choice))
    if question.goal == "fastest" and own and rate > own * (1 + TREE_MARGIN):
        yield (
            f"{best.name} may be faster, {rate:,.0f} tokens per second and GPU ({tier_words(best)}): it stands lower because "
            "nothing is offloaded that need not be"
        )


def settings_sentences(question: Question, choice: Candidate, ranking: Ranking) -> Iterator[str]:
    settings = choice.settings
    if question.global_batch is None and not {"micro_batch", "grad_accum"} & set(question.fields):
        yield "micro-batch 1, because no batch was given: with --global-batch N the largest that fits is chosen"
    if choice.strategy.options.get("sync_each_batch") and question.strategy is None:
        yield "gradients are reduced in every micro-step (sync_each_batch): accumulated whole they do not fit"
    elif choice.strategy.options and question.strategy is None:
        yield "smaller working buffers than the engine's defaults: with those it does not fit"
    if settings.get("checkpointing") == "none":
        yield "no checkpointing: everything fits without recomputing"
    elif settings.get("checkpointing") == "full":
        yield "full checkpointing: saves memory for about a third more computing"
    if "loss" in settings:
        yield "fused loss: the same loss without holding the logits"
    if "precision" in settings:
        stack = choice.estimate.run.workload.stack
        yield f"precision {settings['precision']}: stack {stack} has no words for mixed precision with this strategy"
    if "optimizer" in settings:
        yield f"{settings['optimizer']}: {instead_of_32_bit(choice, ranking)}"
    if "micro_batch" in settings:
        yield (
            f"micro-batch {settings['micro_batch']} x accumulation {settings['grad_accum']}: the largest that fits, "
            "the global batch is kept"
        )


def instead_of_32_bit(choice: Candidate, ranking: Ranking) -> str:
    """Why states are 8-bit: nothing else fits as well, or the best that does is slower."""
    same = next((c for c in ranking.order if c.tier == choice.tier and not c.other_optimizer), None)
    if same is None:
        return "with 32-bit states nothing fits for sure on the GPUs"
    its, own = tokens_per_second(same.estimate), tokens_per_second(choice.estimate)
    if not its or not own:
        return f"{same.name} keeps 32-bit states"
    return (
        f"{same.name} keeps 32-bit states, at {its:,.0f} tokens per second and GPU instead of {own:,.0f}; "
        f"--optimizer {same.estimate.run.settings.optimizer} asks for them"
    )


def what_would_change(question: Question, ranking: Ranking, situation: Situation) -> list[str]:
    """Answers to the tree's questions that would lead to another leaf; no estimate is made for it."""
    leaf, found = ranking.reading.leaf, []
    compiling = "without torch.compile" if situation.compile else "with torch.compile"
    flips = [(compiling, replace(situation, compile=not situation.compile))]
    for team in ("pytorch", "deepspeed"):
        if team != situation.team:
            flips.append((f"with team {team}", replace(situation, team=team)))
    if not situation.knows_deepspeed:
        flips.append(("with DeepSpeed experience", replace(situation, deepspeed_experience=True)))
    for words, flipped in flips:
        other = read(flipped, question.policy)
        if other.leaf != leaf:
            found.append(f"{words} the tree says {LEAF_WORDS[other.leaf]} ({other.strategy})")
    return found


def lengths_words(question: Question) -> str:
    return "on images" if only_images(question.model) else f"at {question.seq_len:,} tokens"


def headline(question: Question, ranking: Ranking, command: str, where_to: str = "", instead: str = "") -> str:
    """The first line of every answer: the choice, GiB of the card's, what binds, and what to run (and where).

    Where the choice stands on host RAM that nobody spoke of, that condition comes before the numbers. Where nothing
    fits, ``instead`` says what would.
    """
    model, cluster, choice = question.model, question.cluster, ranking.choice
    where = f"{cluster.nodes} x " if cluster.nodes > 1 else ""
    gpus = f"{where}{cluster.gpus_per_node} x {cluster.gpu.label}"
    if choice is None:
        return (
            f"Nothing fits: no strategy trains {model.name} {lengths_words(question)} on {gpus} "
            f"({gib(cluster.gpu.memory_bytes, 1)} GiB each); {instead}"
        )
    method = "" if choice.method == "full" else f" by {choice.method}"
    if needs_host(choice.estimate):
        word = "Only if" if improbable(choice.estimate) else "If"
        start = f"{word} a node has {gib(choice.estimate.host.expected, 0)} GiB of host RAM, train"
    else:
        start = "Train"
    used = f"{use_of_card(choice.estimate)} per GPU{left_out(choice.estimate)} ({choice.verdict})"
    return (
        f"{start} {model.name}{method} on {gpus} with {choice.name}: {used}, {binding(choice.estimate)}; "
        f"run{where_to}: {command}"
    )
