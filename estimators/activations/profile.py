"""What one piece of a network keeps, and the moments of its forward and backward that can be the largest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from weakref import ref

from estimators.activations import litgpt
from estimators.activations.attention import Kernels
from estimators.activations.behaviour import with_defaults
from estimators.activations.blocks import block_of
from estimators.activations.builder import Builder, Precision
from estimators.activations.steps import Steps, steps_of
from estimators.activations.streams import input_of
from estimators.activations.tape import (
    ZERO,
    Moment,
    Saved,
    Size,
    Storage,
    Tensor,
    evaluate,
    largest,
    ledger,
    minus,
    plus,
    total,
)
from estimators.activations.visits import Visits
from estimators.devices import DEVICES
from estimators.model.spec import ModelSpec, Part
from estimators.values import dataclass, field, replace

Entrance = ref[Storage]  # of a piece's input
Piece = Callable[[Builder, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Profile:
    """One piece run on sizes; every size is a polynomial that ``evaluate`` turns into bytes.

    ``saved``: tensors that autograd keeps of this piece, its input among them when an operation keeps it.
    ``boundary``: the input, which is what checkpointing keeps. ``output``: what goes to the next piece; not counted.
    ``shared``: kept tensors that belong to every piece (cosines, masks): once a model.
    ``keeps_input``: whether the input is among ``saved``.
    ``present``: shared tensors that nothing keeps: alive while their stack runs, and where it is run again.
    ``frame``: bytes that the frame of the model's forward holds until it returns (names of what was summed up).
    ``outputs``: bytes that the model's outputs hold until the loss is there (features of images), kept by nothing else.
    ``carried``: gradients of shared tensors (encoder states), by name: made by the last block, alive until the first.
    ``leaves``: tensors made here that ask for a gradient of their own (words of a frozen table): they and their gradients
    stay until backward is over.
    ``autocast_copies``: casts of weights that torch.autocast holds until the forward ends, saved or not.
    ``forward``: bytes above what was alive before, the input counted. ``forward_no_grad``: the same, nothing kept.
    ``held``: bytes of outputs that the caller holds until backward is over.
    ``backward``: bytes above (everything saved of this piece + held + incoming gradient); below 0 as saved tensors go.
    ``weight_gradients``: bytes of gradients of weights at its end. ``called``, ``product``: of the head, when it is
    called and when the logits are made; None where a root does not say. ``arguments``: what checkpointing keeps
    beside the input. ``steps``: ``backward`` by the gradients that are there. ``visits``: ``forward`` by modules;
    ``visits_no_grad``: likewise.
    """

    saved: tuple[Saved, ...]
    boundary: Size
    output: Size
    shared: tuple[Saved, ...]
    autocast_copies: Size
    forward: tuple[Moment, ...]
    forward_no_grad: tuple[Moment, ...]
    backward: tuple[Moment, ...]
    weight_gradients: int
    saved_size: Size
    held: Size = ZERO
    keeps_input: bool = True
    carried: tuple[tuple[str, Size], ...] = ()
    present: tuple[tuple[str, Size], ...] = ()
    frame: Size = ZERO
    called: Size | None = None
    product: Size | None = None
    arguments: Size = ZERO
    outputs: Size = ZERO
    leaves: Size = ZERO
    steps: Steps = field(default_factory=dict)
    visits: Visits = field(default_factory=Visits)
    visits_no_grad: Visits = field(default_factory=Visits)

    def saved_bytes(self, batch: int, seq: int) -> int:
        return evaluate(self.saved_size, batch, seq)

    def peak(self, moments: tuple[Moment, ...], batch: int, seq: int) -> int:
        """The largest of ``moments`` when weight gradients are new memory."""
        return max(evaluate(m.live, batch, seq) + m.weight_gradients + m.in_hand for m in moments)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a profile depends on beside the piece itself."""

    precision: Precision = field(default_factory=Precision)
    kernels: Kernels = field(default_factory=Kernels)
    device: str = "cuda"
    needs_input_gradient: bool = True
    image_patches: int = 0  # of an image whose size the config leaves open; 0: as many as are assumed


def config_of(model: ModelSpec, role: str, image_patches: int = 0) -> Mapping[str, object]:
    """The config that parts of a role were built from: of a composite model, the section of that role."""
    section = model.config.get({"vision": "vision_config", "audio": "audio_config"}.get(role, "text_config"))
    found = with_defaults(section if isinstance(section, Mapping) else model.config)
    return {**found, "image_patches": image_patches} if image_patches and role == "vision" else found


@lru_cache(maxsize=4096)
def profile(part: Part, model: ModelSpec, conditions: Conditions = Conditions()) -> Profile:
    """The profile of one block of a run. Raises ``NotModelled`` for a class of block that nobody described."""
    block = litgpt.block if conditions.kernels.library == "litgpt" else block_of(part.class_name)

    def builder(grad: bool) -> Builder:
        parameters = {p.name: p for p in part.parameters}
        config = config_of(model, part.role, conditions.image_patches)
        return Builder(parameters, config, conditions.precision, conditions.kernels, grad, DEVICES[conditions.device])

    return run_piece(builder, block, conditions.needs_input_gradient)


def run_piece(
    builder: Callable[[bool], Builder],
    piece: Piece,
    needs_input_gradient: bool = True,
    holds_input: bool = True,
    from_data: bool = False,
) -> Profile:
    """Run a piece twice: without grad, then with grad forwards and backwards. ``holds_input``: the caller's frame keeps
    the input until the piece returns, as the loop over blocks does. ``from_data``: the input is counted elsewhere."""
    without = builder(False)
    _forward(without, piece, False, holds_input, from_data)
    no_grad, visits_no_grad = largest(without.tape.moments), Visits.of(without.tape)

    b = builder(True)
    tape = b.tape
    output, boundary, entrance = _forward(b, piece, needs_input_gradient, holds_input, from_data)
    arguments = total(t.size for t in b.arguments)
    b.arguments.clear()
    forward, visits = largest(tape.moments), Visits.of(tape)
    copies = total(t.storage.size for t in b.cached.values())
    b.cached.clear()
    saved, apart, kept = _ledger(b, output)
    keeps_input = entrance() is not None and id(entrance()) in kept
    present = tuple((n, b.true_sizes[n]) for n, (t, _) in b.shared.items() if id(t.storage) not in kept)
    frame, outputs = (
        total({id(t.storage): t.storage.size for t in some if id(t.storage) not in kept}.values())
        for some in (b.frame, b.outputs)
    )
    leaves = total(t.storage.size for t in b.leaves)
    b.frame.clear()
    b.outputs.clear()
    b.leaves.clear()
    made_later = [t for t in b.held if id(t.storage) not in kept]
    held = total({id(t.storage): t.storage.size for t in made_later}.values())
    del made_later, kept
    if output.node is None:
        still = (Moment(ZERO),)
        return Profile(saved, boundary, output.size, apart, copies, forward, no_grad, still, 0, ZERO, held, keeps_input,
                       present=present, frame=frame, outputs=outputs, visits=visits, visits_no_grad=visits_no_grad)  # fmt: skip
    carried = tuple(b.carried.items())
    leaving = tape.forget(output)
    tape.moments.clear()
    start = plus(tape.live, leaving)
    gradient = [tape.new("incoming gradient", output.shape, output.dtype)]
    tape.play_backward(output, gradient.pop())
    played = [replace(m, live=minus(m.live, start)) for m in tape.moments]
    size = total(line.size for line in saved)
    return Profile(
        saved,
        boundary,
        leaving,
        apart,
        copies,
        forward,
        no_grad,
        largest(played),
        tape.weight_gradients,
        size,
        held,
        keeps_input,
        carried,
        present,
        frame,
        b.at_head,
        b.at_logits,
        arguments,
        outputs,
        leaves,
        steps_of(played),
        visits,
        visits_no_grad,
    )


def _ledger(b: Builder, output: Tensor) -> tuple[tuple[Saved, ...], tuple[Saved, ...], frozenset[int]]:
    """What the piece keeps of its own, what it keeps of the shared tensors, and which storages those are."""
    shared = {id(tensor.storage): (name, size) for name, (tensor, size) in b.shared.items()}
    saved, apart = [], []
    lines, storages = ledger(output)
    for line, storage in zip(lines, storages, strict=True):
        if id(storage) in shared:
            name, size = shared[id(storage)]
            apart.append(Saved(name, line.operation, size))
        elif line.size != ZERO:
            saved.append(line)
    return tuple(saved), tuple(apart), frozenset(map(id, storages))


def _forward(
    b: Builder, piece: Piece, needs_input_gradient: bool, holds_input: bool, from_data: bool = False
) -> tuple[Tensor, Size, Entrance]:
    hidden = input_of(b, piece, needs_input_gradient)
    boundary = hidden.size
    if from_data:
        b.tape.forget(hidden)
    box, entrance = [hidden], ref(hidden.storage)
    if not holds_input:
        del hidden
    output = piece(b, box.pop())
    b.kept_until_return.clear()
    return output, boundary, entrance
