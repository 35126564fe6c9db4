"""The network's amounts: its runs of blocks with what is in front of them, and its end."""

from __future__ import annotations

from functools import lru_cache

from estimators.activations.checkpointing import Kept, checkpointed, every_second_product
from estimators.activations.formulas import Amount, Anywhere, At, Gradients, larger
from estimators.activations.head import head, joint, with_rows
from estimators.activations.profile import Conditions, Profile, profile
from estimators.activations.question import Question
from estimators.activations.roots import first_of, roots_of
from estimators.activations.steps import Steps
from estimators.activations.tape import ZERO
from estimators.activations.visits import Visits
from estimators.model.spec import Part
from estimators.sites import Site
from estimators.values import NamedTuple, dataclass, replace
from estimators.workload import DTYPE_BYTES

INT64 = 8
RETURNED = " encoder states"  # end of a shared tensor's name: outputs of the model hold it until the loss is there
IMAGE_ROLES = ("vision",)  # a row of their batch is an image
GRADIENTS = ("made", "fresh", "held", "early", "late", "arrives", "between")  # the values of ``Site.gradients``
EARLY = GRADIENTS.index("early")


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
    """One way of treating a piece. ``steps`` of its backward, ``visits`` of its forward and of its recompute (``again``)
    are read when somebody asks for one."""

    kept: Amount
    forward: Amount
    backward: Gradients
    steps: Steps
    visits: Visits
    again: Visits
    read: At | Anywhere
    of_images: bool

    def ahead(self, site: Site) -> Amount:
        """Of a place in forward."""
        moments = () if site.stage == "during" else self.visits.at(site.stage, site.module)
        return self.read.largest(moments, self.of_images) if moments else self.forward

    def at(self, site: Site) -> tuple[Amount, Amount]:
        """Of a place in backward: bytes without and of gradients that are new memory."""
        if site.stage != "during":
            moments = self.again.at(site.stage, site.module)
            return (self.read.largest(moments, self.of_images), 0) if moments else self.backward[EARLY]
        step = self.steps.get(site.made)
        if step is None and site.made >= 0 and site.gradients == "between":  # made in another order: as much, or more
            step = self.steps.get(min([made for made in self.steps if made > site.made], default=-1))
        moments = () if step is None else step.arrival if site.gradients == "arrives" else step.rest
        if moments:
            return self.read.beside(moments, self.of_images)
        return self.backward[GRADIENTS.index(site.gradients)]


class Entry(NamedTuple):
    """Pieces of the root in front of a run of blocks; ``backward``: above what they keep; ``frame``: what a frame holds
    beside it until the forward of their stack returns; ``outputs``: what the model's outputs hold until the loss."""

    kept: Amount = 0
    forward: Amount = 0
    backward: Amount = 0
    frame: Amount = 0
    outputs: Amount = 0
    leaves: Amount = 0  # words that ask for a gradient


class Stretch(NamedTuple):
    """A run of blocks."""

    pieces: int
    levels: tuple[Level, ...]
    boundary: Amount
    output: Amount
    shared: tuple[tuple[str, Amount], ...]  # by role and name: runs of one stack share them
    carried: tuple[tuple[str, Amount], ...]  # gradients of shared tensors
    present: tuple[tuple[str, Amount], ...]  # shared tensors that nothing keeps
    again: bool  # whether blocks are run again
    copies: Amount  # autocast's casts of one piece's weights, where nothing saves them
    first: Level | None  # of piece 0, where it differs
    entry: Entry
    role: str
    leaves: Amount = 0  # made in its blocks, asking for a gradient: they and it stay until backward is over

    def level(self, piece: int) -> Level:
        """How a piece is treated."""
        return self.first if self.first and piece == 0 else self.levels[piece % len(self.levels)]

    def kept(self, pieces: int) -> Amount:
        """Saved bytes of the first ``pieces``."""
        if len(self.levels) == 1 and not self.first:
            return pieces * self.levels[0].kept
        rounds, rest = divmod(pieces, len(self.levels))
        each = [x.kept for x in self.levels]
        whole = rounds * sum(each) + sum(each[:rest])
        if self.first and pieces:
            whole += self.first.kept - each[0]
        return whole


class Before(NamedTuple):
    """What the runs in front of a place leave behind, with the entry of its own."""

    kept: Amount
    copies: Amount
    shared: Amount  # in backward
    shared_forward: Amount
    shared_loss: Amount
    frame: Amount  # while blocks run forwards
    outputs: Amount  # until the loss is there


class Words(NamedTuple):
    """Of a model that looks words up before a tower runs: how many runs of blocks read none, the gradient that waits in
    autograd until those are done, and the words themselves where they are a leaf, which the graph holds. ``left``: what is
    there of a leaf when backward is over, beside that: its gradient, and where no tower is, itself."""

    runs: int = 0
    gradient: Amount = 0
    leaf: Amount = 0
    left: Amount = 0


class Bytes(NamedTuple):
    """The network: in bytes at one batch and sequence, or in formulas for all."""

    stretches: tuple[Stretch, ...]
    before: tuple[Before, ...]  # by the number of a run; the last: behind all of them
    end: Level
    end_saved: Amount
    end_gradient: Amount  # of the last block's output
    held_outputs: Amount
    inputs: Amount  # of a micro-batch
    retains: bool = False
    called: Amount = 0  # of the head, when it is called
    product: Amount = 0  # when it has made the logits
    casts: Amount = 0  # of a micro-batch, copies in the dtype of the weights
    words: Words = Words()


NONE = Before(0, 0, 0, 0, 0, 0, 0)


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
        inner, outer = (replace(conditions, needs_input_gradient=asks) for asks in (came, question.input_gradient))
        entry = tuple(
            (joint(question.model, j, outer if j.from_data else inner), j.role in IMAGE_ROLES) for j in before
        )
        made.append(BlockRun(part, found, checkpointed(found, how, question.reentrant, products), first, entry))
        flows = flows or trains
    return tuple(made)


def has_images(question: Question) -> bool:
    """Whether the number of images of a sample changes anything."""
    roles = [*(part.role for part in question.model.blocks), *(j.role for j in roots_of(question.model).joints)]
    return any(role in IMAGE_ROLES for role in roles)


def rows_of(question: Question, tokens: int) -> int | None:
    """Rows of one piece of a fused loss at so many tokens of a micro-batch; the one thing that is no polynomial."""
    return with_rows(question.model, question.loss, tokens).rows


@lru_cache(maxsize=8192)
def network_bytes(question: Question, batch: int, seq: int, images: int = 1) -> Bytes:
    """Everything in bytes for a micro-batch of ``batch`` sequences of ``seq`` tokens, with ``images`` images each."""
    return _network(question, At(batch, seq, images), rows_of(question, batch * seq))


@lru_cache(maxsize=4096)
def network_formulas(question: Question, images: int, rows: int | None) -> Bytes:
    """Everything as formulas of batch and sequence, as long as a fused loss takes ``rows`` rows at once."""
    return _network(question, Anywhere(images), rows)


def _network(question: Question, read: At | Anywhere, rows: int | None) -> Bytes:
    stretches = tuple(_stretch(r, read) for r in runs_of(question))
    loss = question.loss if rows is None else replace(question.loss, rows=rows)
    end = head(question.model, Conditions(question.precision, question.kernels, question.device, True), loss)
    last = _level(Kept(end.saved_size, ZERO, end.forward, end.backward, False, end.steps), read)
    inputs, casts = _inputs(question, read)
    before = tuple(_before(stretches, part) for part in range(len(stretches) + 1))
    return Bytes(
        stretches,
        before,
        last,
        read.size(end.saved_size),
        stretches[-1].output,
        read.size(end.held),
        inputs,
        question.retains,
        last.forward if end.called is None else read.size(end.called),
        last.forward if end.product is None else read.size(end.product),
        casts,
        _words(question, stretches),
    )


def _words(question: Question, stretches: tuple[Stretch, ...]) -> Words:
    """Frozen words that need a gradient (``enable_input_require_grads``) are a leaf."""
    model = question.model
    alone = all(stretch.role == "decoder" for stretch in stretches)
    if not question.input_gradient or not (model.words_first or alone):
        return Words()
    text, trains = first_of(model, "decoder"), model.in_turn[0].parameters[0].trainable
    size = stretches[text].boundary
    if not model.words_first:
        return Words() if trains or stretches[text].entry.leaves else Words(left=size + size)
    return Words(text, size) if trains else Words(text, size, size, size)


def _inputs(question: Question, read: At | Anywhere) -> tuple[Amount, Amount]:
    """A micro-batch, and the copy of its real numbers in the dtype of the weights: processors give fp32, of which FSDP's
    root (``cast_forward_inputs``) or the model itself makes one that the first convolution keeps."""
    root, weights = roots_of(question.model), question.precision.weights
    reals: Amount = root.reals(read.batch, read.images, question.image_patches) if root.reals else 0
    copied = DTYPE_BYTES[weights] if weights != "fp32" else 0
    whole = root.integers(read.batch, read.seq) if root.integers else 2 * read.batch * read.seq
    return reals * DTYPE_BYTES["fp32"] + whole * INT64, reals * copied


def _stretch(run: BlockRun, read: At | Anywhere) -> Stretch:
    of_images, role, found = run.part.role in IMAGE_ROLES, run.part.role, run.profile
    return Stretch(
        run.part.count, tuple(_level(k, read, of_images) for k in run.kept), read.size(found.boundary, of_images),
        read.size(found.output, of_images), tuple((f"{role} {s.name}", read.size(s.size, of_images)) for s in found.shared),
        tuple((f"{role} {name}", read.size(of, of_images)) for name, of in found.carried),
        tuple((f"{role} {name}", read.size(of, of_images)) for name, of in found.present),
        any(k.recomputes for k in run.kept),
        read.size(found.autocast_copies, of_images) * run.kept[0].recomputes,
        _level(run.first, read, of_images) if run.first else None, _entry(run.entry, read), role,
        read.size(found.leaves, of_images),
    )  # fmt: skip


def _level(kept: Kept, read: At | Anywhere, of_images: bool = False) -> Level:
    return Level(
        read.size(kept.kept, of_images),
        read.largest(kept.forward, of_images),
        read.by_gradients(kept.backward, of_images),
        kept.steps,
        kept.visits,
        kept.again,
        read,
        of_images,
    )


def _entry(pieces: tuple[tuple[Profile, bool], ...], read: At | Anywhere) -> Entry:
    """Pieces one after the other forwards, and back. Their weights' gradients are the engine's."""
    kept: Amount = 0
    forward: Amount = 0
    backward: Amount = 0
    frame: Amount = 0
    outputs: Amount = 0
    leaves: Amount = 0
    for found, of_images in pieces:
        forward = larger(forward, kept + frame + read.largest(found.forward, of_images))
        kept, frame = kept + read.size(found.saved_size, of_images), frame + read.size(found.frame, of_images)
        outputs += read.size(found.outputs, of_images)
        leaves += read.size(found.leaves, of_images)
        output = read.size(found.output, of_images)
        backward = larger(backward, kept + output + read.largest(found.backward, of_images))
    return Entry(kept, forward, larger(0, backward - kept), frame, outputs, leaves)


def _before(stretches: tuple[Stretch, ...], part: int) -> Before:
    last = part == len(stretches)
    role = stretches[part - last].role
    kept: Amount = 0
    copies: Amount = 0
    frame: Amount = 0
    outputs: Amount = 0
    shared: dict[str, Amount] = {}
    forward: dict[str, Amount] = {}
    loss: dict[str, Amount] = {}
    for number, stretch in enumerate(stretches[: part + 1]):
        kept += stretch.entry.kept
        frame += stretch.entry.frame * (stretch.role == role)
        outputs += stretch.entry.outputs
        if number < part:
            kept += stretch.kept(stretch.pieces)
            copies += stretch.copies * stretch.pieces
        for into, counts in ((shared, stretch.again), (forward, stretch.again or stretch.role == role),
                             (loss, stretch.again)):  # fmt: skip
            into.update(stretch.shared)
            for name, size in stretch.present:
                if name not in into and (counts or (into is loss and name.endswith(RETURNED))):
                    into[name] = size
    return Before(kept, copies, sum(shared.values()), sum(forward.values()), sum(loss.values()), frame, outputs)
