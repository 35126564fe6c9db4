"""What the network itself holds at a place of the step: saved tensors, the working set of the piece that runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from estimators.activations.amounts import NONE, Bytes, network_bytes, network_formulas
from estimators.activations.formulas import Amount, larger
from estimators.activations.question import Question, question_of
from estimators.activations.roots import roots_of
from estimators.errors import NotModelled
from estimators.result import Term
from estimators.run import Run
from estimators.sites import OUTSIDE, START, Site
from estimators.values import dataclass, field

COMPUTES = ("during", "entering", "inside", "through", "behind")  # stages of a block in which it runs
Row = tuple[str, str, Amount, str]  # the fields of a ``Term``, which is made only when somebody reads it


@dataclass(frozen=True, eq=False, slots=True)
class Network:
    """The network of a run: amounts and terms at any place of the step, at its batch and sequence or at all of them."""

    bytes: Bytes
    sizes: dict[Site, Amount] = field(default_factory=dict)  # of places that somebody asked for

    @classmethod
    def of(cls, run: Run) -> Network:
        """In bytes. Raises ``NotModelled`` where a block or the head has no ledger."""
        asked = run.workload
        return _at(modelled(run), asked.micro_batch, asked.seq_len, asked.images)

    def terms(self, site: Site) -> tuple[Term, ...]:
        """Activations, logits and inputs that are alive at ``site``."""
        if site == OUTSIDE:
            return ()
        rows = _rows(self.bytes, site)
        if 0 <= site.part < len(self.bytes.stretches) and site.stage in COMPUTES:
            _give_up(rows)
        return tuple(Term(*row) for row in rows if row[2])  # type: ignore[arg-type]

    def size(self, site: Site) -> Amount:
        if site == OUTSIDE:
            return 0
        found = self.sizes.get(site)
        if found is None:
            found = self.sizes[site] = sum([row[2] for row in _rows(self.bytes, site)])
        return found


def modelled(run: Run) -> Question:
    """What the run asks of the ledgers. Raises ``NotModelled`` where the head has none."""
    if not run.model.head and not roots_of(run.model).head:
        raise NotModelled(f"what the head of {run.model.class_name} keeps has not been described")
    return question_of(run)


@lru_cache(maxsize=8192)
def _at(question: Question, batch: int, seq: int, images: int) -> Network:
    return Network(network_bytes(question, batch, seq, images))


@lru_cache(maxsize=4096)
def anywhere(question: Question, images: int, rows: int | None) -> Network:
    """The network as formulas of batch and sequence. Raises ``NotModelled`` where a block has no ledger."""
    return Network(network_formulas(question, images, rows))


def _rows(found: Bytes, site: Site) -> list[Row]:
    inputs: list[Row] = [
        ("inputs and labels", "activations", found.inputs, "a micro-batch, until the loop has another")
    ]
    if site.direction == "outside":
        return inputs
    at_end = site.part >= len(found.stretches)
    rows = [*inputs, *_saved(found, site)]
    if found.casts and not (site.direction == "backward" and site.part < 0):
        rows.append(("inputs in the weights' dtype", "activations", found.casts, "images, for the first convolution"))
    if site.direction != "forward" and not at_end:
        if found.retains:
            rows.append(_retained(found, site))
        if found.held_outputs:
            rows.append(
                ("outputs held by the loop", "logits", found.held_outputs, "logits, until the loop drops the outputs")
            )
    if site.direction == "backward" and 0 <= site.part < found.words.runs:
        rows.append(
            ("gradient of words", "activations", found.words.gradient, "waits until the tower's backward is done")
        )
    if site.direction != "forward" or site.part >= found.words.runs:
        rows.append(("words", "activations", found.words.leaf, "held by the graph, whose leaf they are"))
    if site.direction == "backward" and site.part == START and site.stage == "before":
        rows.append(("words and their gradient", "activations", found.words.left, "a leaf of the graph: frozen"))
    if site.direction == "backward":
        rows.append(_leaves(found, site))
    if at_end:
        rows += _at_end(found, site)
    elif site.part >= 0:
        rows += _at_block(found, site)
    elif site.direction == "backward" and site.stage == "during":
        first = found.words.gradient if found.words.runs else found.stretches[0].boundary
        rows.append(("incoming gradient", "activations", first, "of what the embeddings gave, as theirs is made"))
    return rows


def _give_up(rows: list[Row]) -> None:
    """What backward has let go of a block's saved tensors, where that is more than its own work, is saved no more."""
    place = next((i for i, row in enumerate(rows) if row[2] < 0), None)  # type: ignore[operator]
    if place is None:
        return
    saved = next(i for i, row in enumerate(rows) if row[0] == "saved activations")
    name, category, kept, formula = rows[saved]
    rows[saved] = (name, category, kept + rows[place][2], formula)
    del rows[place]


def _saved(found: Bytes, site: Site) -> list[Row]:
    """Saved tensors of the pieces in front of the site; of the piece itself too before its backward begins."""
    kept, copies, shared, shared_forward, shared_loss, frame, outputs = (
        found.before[min(site.part, len(found.stretches))] if site.part >= 0 else NONE
    )
    if 0 <= site.part < len(found.stretches):
        stretch = found.stretches[site.part]
        pieces = site.piece + (site.direction == "backward" and site.stage != "after")
        kept += stretch.kept(pieces)
        copies += stretch.copies * pieces
    if site.direction == "backward":
        copies = 0
        if site.stage == "after" and site.piece == 0 and 0 <= site.part < len(found.stretches):
            shared = found.before[site.part - 1].shared if site.part else 0  # no block of this run needs them any more
    else:
        shared = shared_forward if site.direction == "forward" else shared_loss
    rows: list[Row] = [
        ("saved activations", "activations", kept, "kept by autograd or checkpointing, of earlier blocks"),
        ("cached casts of weights", "activations", copies, "torch.autocast's 16-bit copies, until forward ends"),
        ("shared inputs of blocks", "activations", shared, "rotary cosines and sines, masks: once"),
    ]
    if site.direction == "forward":
        rows.append(("embeddings before their sum", "activations", frame, "held by names in the model's forward"))
    if site.direction != "backward":
        rows.append(("features in the outputs", "activations", outputs, "of images, until the loss is there"))
    if site.direction == "backward":
        rows.append(_carried(found, site))
    return rows


def _carried(found: Bytes, site: Site) -> Row:
    """Gradients of tensors that a stack shares (encoder states, position bias), from its last block to its first."""
    alive: dict[str, Amount] = {}
    for number, stretch in enumerate(found.stretches):
        if not stretch.carried:
            continue
        done = stretch.pieces - site.piece - (site.stage != "after")
        begun = number > site.part or (number == site.part and done)
        for name, size in stretch.carried:
            if begun and _still(found, site, name):
                alive[name] = size
    return ("gradients of shared inputs", "activations", sum(alive.values()), "summed over the blocks of a stack")


def _still(found: Bytes, site: Site, name: str) -> bool:
    """Whether blocks are left that add to a shared tensor's gradient, or make the tensor: its first may do so."""
    first = next(n for n, s in enumerate(found.stretches) if s.role == name.partition(" ")[0])
    if site.part > first or site.stage != "after" or site.piece:
        return site.part >= first
    return site.part == first and any(name == other for other, _ in found.stretches[first].carried)


def _leaves(found: Bytes, site: Site) -> Row:
    """Leaves of what is done that asked for a gradient, and it: AccumulateGrad's nodes hold both while there is a loss.

    Words in front of a run of blocks are among what it keeps until they are done; what its blocks made is a shared input
    of those behind.
    """
    size: Amount = 0
    for number, stretch in enumerate(found.stretches):
        if site.part < number:
            size += stretch.entry.leaves + stretch.entry.leaves
        if site.part <= number:
            size += stretch.leaves
        if site.part < number or (site.part == number and site.stage == "after"):
            size += stretch.leaves  # its gradient; before that it is carried
    return (
        "leaves and their gradients",
        "activations",
        size,
        "words of a frozen table, T5's zeros: until the loss goes",
    )


def _retained(found: Bytes, site: Site) -> Row:
    """Inputs of blocks that are done, and their gradients, until FSDP1 ends the backward.

    FSDP1 watches the inputs of a unit without trained weights (_runtime_utils.py
    ``_register_post_backward_reshard_only_hook``). Under reentrant checkpointing they are leaves of the recomputation;
    ``register_multi_grad_hook`` holds their AccumulateGrad nodes, which hold the tensors and their gradients.
    """
    size: Amount = 0
    for number, stretch in enumerate(found.stretches):
        if number == site.part:
            done = stretch.pieces - site.piece - 1
            size += stretch.boundary * (2 * done + (site.stage == "after"))
        elif number > site.part:
            size += 2 * stretch.boundary * stretch.pieces
    return ("inputs of blocks that are done", "activations", size, "and their gradients, held by FSDP1's hooks")


def _at_block(found: Bytes, site: Site) -> Iterator[Row]:
    stretch = found.stretches[site.part]
    level = stretch.level(site.piece)
    if site.direction == "forward":
        if site.stage in COMPUTES:
            yield ("block being computed", "activations", level.ahead(site), "largest moment of its forward")
        else:
            entry = stretch.entry
            entering = entry.forward - entry.kept - entry.frame - entry.outputs if site.piece == 0 else 0
            yield (
                "block input",
                "activations",
                larger(stretch.boundary, entering),
                "hidden states, or what makes them",
            )
    elif site.stage == "before":
        yield ("incoming gradient", "activations", stretch.output, "of the block's output")
    elif site.stage in COMPUTES:
        work, gradients = level.at(site)
        yield ("block in backward", "activations", stretch.output + work,
                   "recompute and gradients at their largest, beside what is kept")  # fmt: skip
        yield ("gradients of the block's weights", "gradients", gradients, "made by then, in the weights' dtype")
    else:
        leaving = stretch.entry.backward if site.piece == 0 else 0
        yield ("outgoing gradient", "activations", larger(stretch.boundary, leaving), "of the block's input")


def _at_end(found: Bytes, site: Site) -> Iterator[Row]:
    if site.direction == "backward" and site.stage != "before":
        yield ("outputs held by the loop", "logits", found.held_outputs, "logits, until the loop drops the outputs")
        if site.stage == "after":
            yield ("outgoing gradient", "activations", found.end_gradient, "of the last block's output")
            return
        work, gradients = found.end.at(site)
        yield ("head and loss in backward", "logits", found.end_saved + work,
                   "what the head keeps and gradients of logits, at their largest together")  # fmt: skip
        yield ("gradients of the head's weights", "gradients", gradients, "made by then, in the weights' dtype")
        return
    if site.stage == "during":
        yield ("head and loss", "logits", found.end.forward, "logits, their fp32 copy, log-probabilities")
    elif site.stage == "entering":
        yield ("final norm", "logits", found.called, "and what it gives, before the head has it")
    elif site.direction == "loss":
        yield ("head", "logits", found.product, "final norm and logits, before the loss reads them")
    else:
        yield ("head and loss, kept", "logits", found.end_saved, "log-probabilities, final norm")
        yield ("outputs held by the loop", "logits", found.held_outputs, "logits, until the loop drops the outputs")
