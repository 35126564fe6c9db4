"""The order of what is left, and whether the tree's engine or another one is the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from estimators.stacks.versions import resolve
from estimators.values import dataclass, replace
from estimators.workload import workload
from selector.candidates import VERDICT_RANK, Candidate, has_room
from selector.cost import SECONDS, Cost, offload_rank
from selector.question import Question
from selector.tree import Reading, Situation, read, size_of

TREE_MARGIN = 0.10  # the tree's engine wins when it costs at most so much more than the best
NEVER = 1e9  # times what it costs: after everything else
TIE = 0.03  # closer than this no model tells two strategies apart: the simpler one wins
LEAF_ENGINES = {"ddp": ("torch", "ddp"), "fsdp": ("fsdp2", "fsdp1"), "deepspeed": ("deepspeed",)}

# How much there is to set up and to understand; after it the ways of offload.
SIMPLICITY = {
    name: place
    for place, group in enumerate(
        (
            ("single",), ("ddp",), ("fsdp-full-shard", "fsdp1-full-shard"), ("zero1",), ("zero2",),
            ("fsdp-shard-grad-op", "fsdp1-shard-grad-op"), ("zero3",), ("fsdp-hybrid-shard", "fsdp1-hybrid-shard"),
        )
    )
    for name in group
}  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True)
class Ranking:
    """``choice`` is the answer (None: nothing fits), ``tree`` the best of the leaf, ``order`` all, the choice first."""

    choice: Candidate | None
    tree: Candidate | None
    best: Candidate | None
    order: tuple[Candidate, ...]
    reading: Reading

    @property
    def sure(self) -> Candidate | None:
        """The first that fits for sure; the choice itself, unless that is tight."""
        return next((c for c in self.order if c.verdict == "fits"), None)

    @property
    def follows_tree(self) -> bool:
        return self.choice is not None and self.choice is self.tree


def rank(question: Question, found: Sequence[Candidate]) -> Ranking:
    """Read the tree with the verdicts in hand, order the candidates by the goal, and choose."""
    reading = read(situation_of(question, found), question.policy)
    spared = needless(question, found)
    price = charges(question, found)
    order = tuple(sorted(found, key=lambda c: sort_key(question, c, c.name in spared, price[c])))
    if not order:
        return Ranking(None, None, None, (), reading)
    best = simplest_of_equals(question, order, price)
    tree = trees_candidate(question, reading, order, price)
    choice = best
    if question.strategy is None and tree is not None and wins(question, tree, best, spared, price):
        choice = tree
    rest = tuple(c for c in order if c is not choice)
    return Ranking(choice, tree, best, (choice, *rest), reading)


def needless(question: Question, found: Sequence[Candidate]) -> frozenset[str]:
    """Sharded strategies whose settings fit unsharded with room to spare; the documents' own tree has no such rule.

    Measured: OLMo-1B on 4 GPUs, 8034 tokens/s/GPU with DDP, 1790 with SHARD_GRAD_OP, 1747 with full shard (OLMo#762).
    """
    if question.policy == "documents":
        return frozenset()
    whole = [c for c in found if not c.strategy.is_sharded and has_room(c.estimate)]
    return frozenset(
        c.name
        for c in found
        if c.strategy.is_sharded and any(w.method == c.method and w.settings == c.settings for w in whole)
    )


def charges(question: Question, found: Sequence[Candidate]) -> dict[Candidate, Cost]:
    """What a candidate costs in the ranking: ``TREE_MARGIN`` more than it does for each thing that has to pay for itself.

    An optimizer that nobody asked for, which bytes sent alone never justify; and, where a run fits unsharded with room
    to spare, sharding.
    """
    spared = question.policy == "documents"
    whole = [c for c in found if not c.strategy.is_sharded and not offload_rank(c.strategy) and has_room(c.estimate)]
    made = {}
    for c in found:
        shards = not spared and c.strategy.is_sharded and any(w.method_rank <= c.method_rank for w in whole)
        times = (1 + TREE_MARGIN) ** (c.other_optimizer + shards)
        if c.other_optimizer and c.cost.unit != SECONDS:
            times = NEVER
        made[c] = replace(c.cost, value=c.cost.value * times)
    return made


def sort_key(question: Question, candidate: Candidate, spared: bool, price: Cost) -> tuple[object, ...]:
    """No offload before offload, fits before tight, the preferred method, no needless sharding, then the goal."""
    simple = SIMPLICITY.get(candidate.strategy.base, len(SIMPLICITY))
    concessions = sum(1 for name in ("loss", "optimizer") if name in candidate.settings)
    if question.goal == "simplest":
        return (*candidate.tier, spared, candidate.other_optimizer, simple, concessions, price)
    return (*candidate.tier, spared, price, concessions, simple)


def simplest_of_equals(question: Question, order: Sequence[Candidate], price: Mapping[Candidate, Cost]) -> Candidate:
    """The first, or a simpler one that is as good as it within what a model can tell."""
    first = order[0]
    if question.goal == "simplest" or not first.strategy.is_sharded:
        return first
    equals = [c for c in order if c.tier == first.tier and price[c].within(price[first], TIE)]
    equals = [c for c in equals if c.other_optimizer <= first.other_optimizer]
    return min(equals, key=lambda c: SIMPLICITY.get(c.strategy.base, len(SIMPLICITY)))


def trees_candidate(
    question: Question, reading: Reading, order: Sequence[Candidate], price: Mapping[Candidate, Cost]
) -> Candidate | None:
    """What the leaf means among the candidates.

    Under ``documents``, or where an amendment names it, exactly the leaf's strategy, with the least offload that makes
    it fit; else the best of the leaf's engine.
    """
    named = [c for c in order if c.strategy.base == reading.strategy]
    exact = question.policy == "documents" or any(a.strategy for a in reading.amendments)
    if exact and named:
        return min(named, key=lambda c: (offload_rank(c.strategy), VERDICT_RANK[c.verdict]))
    own = [c for c in order if c.strategy.engine in LEAF_ENGINES[reading.leaf]]
    if not own:
        return None
    return simplest_of_equals(question, own, price) if question.policy == "current" else own[0]


def wins(
    question: Question, tree: Candidate, best: Candidate, spared: frozenset[str], price: Mapping[Candidate, Cost]
) -> bool:
    """The tree's engine is taken for goal ``documents``, and where it is as good in kind and within the margin."""
    if question.goal == "documents":
        return True
    if (tree.name in spared and best.name not in spared) or tree.other_optimizer > best.other_optimizer:
        return False
    return tree.tier == best.tier and question.goal == "fastest" and price[tree].within(price[best], TREE_MARGIN)


def situation_of(question: Question, found: Sequence[Candidate]) -> Situation:
    """The question as the tree sees it: DDP fits where it leaves room (显存充足), ZeRO-2 where it fits.

    Neither counts with concessions of method or optimizer.
    """
    billions, because = size_of(question.model)
    plain = {c.name: c for c in found if c.method_rank == 0 and "optimizer" not in c.settings}
    asked = question.strategy is None
    whole = "single" if question.cluster.ranks == 1 else "ddp"
    unsharded, zero2 = plain.get(whole), plain.get("zero2")
    versions = resolve(workload(**question.fields).versions)
    return Situation(
        billions=billions, size_because=because, compile=question.compile,
        deepspeed_experience=question.deepspeed_experience, team=question.team, seq_len=question.seq_len,
        gpus=question.cluster.ranks, method=question.methods[0], stack=str(question.fields.get("stack", "trainer")),
        ddp_fits=(unsharded is not None and has_room(unsharded.estimate)) if asked else None,
        zero2_fits=(zero2 is not None and zero2.verdict == "fits") if asked else None, versions=versions,
    )  # fmt: skip
