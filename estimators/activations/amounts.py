"""The network in bytes at one batch and sequence: its runs of blocks with what is in front of them, and its end."""

from __future__ import annotations

from functools import lru_cache

from estimators.activations.checkpointing import Kept, checkpointed, every_second_product
from estimators.activations.head import head, joint, with_rows
from estimators.activations.profile import Conditions, Profile, profile
from estimators.activations.question import Question
from estimators.activations.roots import roots_of
from estimators.activations.tape import ZERO, Moment, Size, evaluate
from estimators.model.spec import Part
from estimators.values import NamedTuple, dataclass, replace
from estimators.workload import DTYPE_BYTES

INT64 = 8
IMAGE_ROLES = ("vision",)  # a row of their batch is an image
GRADIENTS = ("made", "fresh", "held", "early", "late")  # the values of ``Site.gradients``


@dataclass(frozen=True, eq=False)
class BlockRun:
    """Equal blocks: how its pieces are treated in turn; ``first``: of the first, where no gradient leaves it.

    ``entry``: pieces of the root in front of them, each with whether its rows are images.
    """

    part: Part
    profile: Profile
    kept: tuple[Kept, ...]
    first: Kept | None = None
    entry: tuple[tuple[Profile, bool], ...] = ()


class Level(NamedTuple):
    """One way of treating a piece, in bytes for one batch and sequence."""

    kept: int
    host: int
    forward: int
    backward: tuple[tuple[int, int], ...]  # in the order of GRADIENTS: bytes without and of weight gradients


class Entry(NamedTuple):
    """Pieces of the root in front of a run of blocks, in bytes; ``backward``: above what they keep; ``frame``: what a
    frame holds beside it until the forward of their stack returns."""

    kept: int = 0
    forward: int = 0
    backward: int = 0
    frame: int = 0


class Stretch(NamedTuple):
    """A run of blocks in bytes."""

    pieces: int
    levels: tuple[Level, ...]
    boundary: int
    output: int
    shared: tuple[tuple[str, int], ...]  # by role and name: runs of one stack share them
    carried: tuple[tuple[str, int], ...]  # gradients of shared tensors
    present: tuple[tuple[str, int], ...]  # shared tensors that nothing keeps
    again: bool  # whether blocks are run again
    copies: int  # autocast's casts of one piece's weights, where nothing saves them
    first: Level | None  # of piece 0, where it differs
    entry: Entry
    role: str

    def level(self, piece: int) -> Level:
        """How a piece is treated."""
        return self.first if self.first and piece == 0 else self.levels[piece % len(self.levels)]

    def kept(self, pieces: int, host: bool = False) -> int:
        """Saved bytes of the first ``pieces``."""
        if len(self.levels) == 1 and not host and not self.first:
            return pieces * self.levels[0].kept
        rounds, rest = divmod(pieces, len(self.levels))
        each = [x.host if host else x.kept for x in self.levels]
        whole = rounds * sum(each) + sum(each[:rest])
        if self.first and pieces:
            whole += (self.first.host if host else self.first.kept) - each[0]
        return whole


class Before(NamedTuple):
    """What the runs in front of a place leave behind, with the entry of its own, in bytes."""

    kept: int
    copies: int
    shared: int  # in backward and at the loss
    shared_forward: int
    frame: int  # while blocks run forwards


class Bytes(NamedTuple):
    """The network at one batch and sequence."""

    stretches: tuple[Stretch, ...]
    before: tuple[Before, ...]  # by the number of a run; the last: behind all of them
    end: Level
    end_saved: int
    end_gradient: int  # of the last block's output
    held_outputs: int
    inputs: int
    retains: bool = False
    product: int = 0  # of the head, when it has made the logits


NONE = Before(0, 0, 0, 0, 0)


@lru_cache(maxsize=2048)
def runs_of(question: Question) -> tuple[BlockRun, ...]:
    """Every run of blocks with its profile. Raises ``NotModelled`` for a block that nobody described."""
    made, flows = [], question.input_gradient
    joints = roots_of(question.model).joints
    for number, part in enumerate(question.model.blocks):
        before, came = [j for j in joints if j.before == number], flows
        if any(j.restarts for j in before):
            flows = question.input_gradient
        trains = any(p.trainable for p in part.parameters)
        conditions = Conditions(question.precision, question.kernels, question.device, flows or trains,
                                question.image_patches)  # fmt: skip
        found = profile(part, question.model, conditions)
        how = question.checkpointing if flows or trains else "none"
        element = DTYPE_BYTES[question.precision.autocast or question.precision.weights]
        products = every_second_product(part, element) if question.keeps_products else ZERO
        first = None
        if trains and not flows:  # a gradient reaches the first of these blocks and does not leave it
            entering = profile(part, question.model, replace(conditions, needs_input_gradient=False))
            first = checkpointed(entering, how, question.reentrant, products)[0]
        entry = tuple(
            (joint(question.model, j, replace(conditions, needs_input_gradient=came)), j.role in IMAGE_ROLES)
            for j in before
        )
        made.append(BlockRun(part, found, checkpointed(found, how, question.reentrant, products), first, entry))
        flows = flows or trains
    return tuple(made)


@lru_cache(maxsize=8192)
def network_bytes(question: Question, batch: int, seq: int, images: int = 1) -> Bytes:
    """Everything in bytes for a micro-batch of ``batch`` sequences of ``seq`` tokens, with ``images`` images each."""
    stretches = tuple(_stretch(r, batch, seq, images) for r in runs_of(question))
    loss = with_rows(question.model, question.loss, batch * seq)
    end = head(question.model, Conditions(question.precision, question.kernels, question.device, True), loss)
    last = _level(Kept(end.saved_size, ZERO, end.forward, end.backward, False), batch, seq)
    held = evaluate(end.held, batch, seq)
    given = roots_of(question.model).inputs
    inputs = given(batch, seq, images, _real_bytes(question)) if given else 2 * batch * seq * INT64
    before = tuple(_before(stretches, part) for part in range(len(stretches) + 1))
    product = last.forward if end.product is None else evaluate(end.product, batch, seq)
    return Bytes(
        stretches,
        before,
        last,
        end.saved_bytes(batch, seq),
        stretches[-1].output,
        held,
        inputs,
        question.retains,
        product,
    )


def _real_bytes(question: Question) -> int:
    """Of a number of an image: processors give fp32, of which FSDP's root makes a copy in the dtype it computes in
    (``cast_forward_inputs``); that one the first convolution keeps."""
    compute = question.precision.weights
    return DTYPE_BYTES["fp32"] + (DTYPE_BYTES[compute] if question.precision.uniform and compute != "fp32" else 0)


def _stretch(run: BlockRun, batch: int, seq: int, images: int) -> Stretch:
    rows, role, found = batch * images if run.part.role in IMAGE_ROLES else batch, run.part.role, run.profile

    def size(of: Size) -> int:
        return evaluate(of, rows, seq)

    return Stretch(
        run.part.count, tuple(_level(k, rows, seq) for k in run.kept), size(found.boundary), size(found.output),
        tuple((f"{role} {s.name}", size(s.size)) for s in found.shared),
        tuple((f"{role} {name}", size(of)) for name, of in found.carried),
        tuple((f"{role} {name}", size(of)) for name, of in found.present), any(k.recomputes for k in run.kept),
        size(found.autocast_copies) * run.kept[0].recomputes, _level(run.first, rows, seq) if run.first else None,
        _entry(run.entry, batch, seq, images), role,
    )  # fmt: skip


def _level(kept: Kept, batch: int, seq: int) -> Level:
    forward = max((evaluate(m.live, batch, seq) for m in kept.forward), default=0)
    sizes = [(evaluate(m.live, batch, seq), m.weight_gradients, m.fresh_gradient) for m in kept.backward]
    return Level(evaluate(kept.kept, batch, seq), evaluate(kept.host, batch, seq), forward, _by_gradients(sizes))


def _entry(pieces: tuple[tuple[Profile, bool], ...], batch: int, seq: int, images: int) -> Entry:
    """Pieces one after the other forwards, and back. Their weights' gradients are the engine's."""
    kept = forward = backward = frame = 0
    for found, of_images in pieces:
        rows = batch * images if of_images else batch

        def largest(moments: tuple[Moment, ...], rows: int = rows) -> int:
            return max((evaluate(m.live, rows, seq) for m in moments), default=0)

        forward = max(forward, kept + largest(found.forward))
        kept, frame = kept + found.saved_bytes(rows, seq), frame + evaluate(found.frame, rows, seq)
        backward = max(backward, kept + evaluate(found.output, rows, seq) + largest(found.backward))
    return Entry(kept, forward, max(0, backward - kept), frame)


def _by_gradients(sizes: list[tuple[int, int, int]]) -> tuple[tuple[int, int], ...]:
    """The largest moment of backward by what counts as new memory; each (live, all weight gradients, the fresh one)."""
    most = recent = (sizes or [(0, 0, 0)])[0]
    early: int | None = None
    late: int | None = None
    for size in sizes:
        live, made, fresh = size
        if live + made > most[0] + most[1]:
            most = size
        if live + fresh > recent[0] + recent[2]:
            recent = size
        if made:
            late = live if late is None or live > late else late
        else:
            early = live if early is None or live > early else early
    held = max([live for live in (early, late) if live is not None], default=0)
    return ((most[0], most[1]), (recent[0], recent[2]), (held, 0), (early or 0, 0), (late or 0, 0))


def _before(stretches: tuple[Stretch, ...], part: int) -> Before:
    last = part == len(stretches)
    role = stretches[part - last].role
    kept = copies = frame = 0
    shared: dict[str, int] = {}
    forward: dict[str, int] = {}
    for number, stretch in enumerate(stretches[: part + 1]):
        kept += stretch.entry.kept
        frame += stretch.entry.frame * (stretch.role == role)
        if number < part:
            kept += stretch.kept(stretch.pieces)
            copies += stretch.copies * stretch.pieces
        for into, counts in ((shared, stretch.again), (forward, stretch.again or stretch.role == role)):
            into.update(stretch.shared)
            if counts:
                into.update((name, size) for name, size in stretch.present if name not in into)
    return Before(kept, copies, sum(shared.values()), sum(forward.values()), frame)
