"""A network run on sizes instead of numbers: what autograd keeps, and what is alive at every moment.

A block's forward is written in the operations of the real module. Each operation allocates its output, keeps what its
derivative formula keeps (torch/tools/autograd/derivatives.yaml) and knows what its backward allocates. Lifetimes are
Python's own reference counts, as in the real module, so the ledger of saved tensors, the largest moment of a forward
and the largest moment of a backward all come out of one description; nothing is a formula for a whole block.

Sizes are polynomials in the batch ``B`` and the sequence ``S``: a block is run once, then evaluated for any workload.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from estimators.values import dataclass, field
from estimators.workload import DTYPE_BYTES

BYTES = {**DTYPE_BYTES, "bool": 1, "int32": 4, "int64": 8, "complex64": 8}
Dim = int | str  # a number, "B" (sequences of a micro-batch) or "S" (tokens of a sequence)

# Exponents (of B, of S) of the monomials that sizes are made of.
MONOMIALS = ((0, 0), (1, 0), (0, 1), (1, 1), (1, 2), (0, 2))
_INDEX = {exponents: index for index, exponents in enumerate(MONOMIALS)}
Size = tuple[int, ...]  # bytes: one coefficient for each monomial
ZERO: Size = (0,) * len(MONOMIALS)


def numel(shape: Sequence[Dim]) -> Size:
    """Elements of a shape: ``("B", "S", 4096)`` -> 4096 in the place of B x S."""
    if "S+1" in shape:
        place = list(shape).index("S+1")
        return plus(*(numel((*shape[:place], dim, *shape[place + 1 :])) for dim in ("S", 1)))
    count, batch, sequence = 1, 0, 0
    for dim in shape:
        if dim == "B":
            batch += 1
        elif dim == "S":
            sequence += 1
        else:
            count *= int(dim)
    size = [0] * len(MONOMIALS)
    size[_INDEX[batch, sequence]] = count
    return tuple(size)


def plus(a: Size, b: Size) -> Size:
    return tuple(map(int.__add__, a, b))


def minus(a: Size, b: Size) -> Size:
    return tuple(map(int.__sub__, a, b))


def times(a: Size, factor: int) -> Size:
    return tuple(factor * x for x in a)


def total(sizes: Iterable[Size]) -> Size:
    result = ZERO
    for size in sizes:
        result = plus(result, size)
    return result


def evaluate(size: Size, batch: int, sequence: int) -> int:
    """Bytes for a micro-batch of ``batch`` sequences of ``sequence`` tokens."""
    one, b, s, bs, bss, ss = size
    tokens = batch * sequence
    return one + b * batch + s * sequence + bs * tokens + bss * tokens * sequence + ss * sequence * sequence


class Storage:
    """Memory that is alive as long as somebody refers to it."""

    __slots__ = ("__weakref__", "born", "name", "size", "tape")

    def __init__(self, tape: Tape, name: str, size: Size) -> None:
        self.tape, self.name, self.size = tape, name, size
        self.born = len(tape.moments)
        tape.allocated(size)

    def __del__(self) -> None:
        self.tape.freed(self.size)


class Tensor:
    """Memory seen in a shape and dtype, with the node that made it when a gradient flows through it.

    A view holds its base, as autograd's views do even inside backward: the engine never sums into such a gradient.
    ``strided``: heads and tokens are swapped in memory, so that a reshape has to copy.
    """

    __slots__ = ("base", "dtype", "node", "shape", "storage", "strided")

    def __init__(
        self, storage: Storage, shape: tuple[Dim, ...], dtype: str, node: Node | None = None, base: Tensor | None = None
    ) -> None:
        self.storage, self.shape, self.dtype, self.node, self.base = storage, shape, dtype, node, base
        self.strided = False

    @property
    def needs_grad(self) -> bool:
        return self.node is not None

    @property
    def size(self) -> Size:
        return times(numel(self.shape), BYTES[self.dtype])


@dataclass(eq=False, slots=True)
class Weight:
    """A parameter as an operation sees it: not counted here (engines hold it), but copies of it are."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool = True

    @property
    def needs_grad(self) -> bool:
        return self.trainable


Operand = Tensor | Weight
Gradient = Tensor | None
Backward = Callable[[Tensor], "Sequence[Gradient]"]


@dataclass(eq=False)
class Node:
    """One operation that a gradient flows through: what it keeps and what its backward gives to each input."""

    operation: str
    inputs: list[Node | Weight | None]
    backward: Backward | None
    kept: list[tuple[str, Storage]] = field(default_factory=list)
    order: int = 0


@dataclass(frozen=True, slots=True)
class Saved:
    """One line of a ledger: a tensor that autograd keeps, by the first operation that keeps it."""

    name: str
    operation: str
    size: Size


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes alive on the tape; gradients of weights made so far, and the one that was made last (bytes).

    ``in_hand``: bytes of gradients that an operation has made and still works beside: in none of the other three. One
    weight of stacked experts has a gradient larger than all activations of its block.
    """

    live: Size
    weight_gradients: int = 0
    fresh_gradient: int = 0
    in_hand: int = 0


@dataclass(frozen=True, slots=True)
class Visit:
    """A module is entered or left: moments before, and what is alive."""

    module: str
    enters: bool
    before: int
    live: Size


class Tape:
    """Runs operations, counts what is alive, and plays the graph backwards."""

    def __init__(self, grad: bool = True) -> None:
        self.grad = grad
        self.live: Size = ZERO
        self.moments: list[Moment] = []
        self.weight_gradients = 0
        self.in_hand = 0
        self.visits: list[Visit] = []
        self._order = 0

    def allocated(self, size: Size) -> None:
        self.live = plus(self.live, size)
        self.moments.append(Moment(self.live, self.weight_gradients, 0, self.in_hand))

    def freed(self, size: Size) -> None:
        self.live = minus(self.live, size)

    @contextmanager
    def inside(self, module: str) -> Iterator[None]:
        """The forward of a module, by its path in the piece."""
        self.visits.append(Visit(module, True, len(self.moments), self.live))
        yield
        self.visits.append(Visit(module, False, len(self.moments), self.live))

    def new(self, name: str, shape: Sequence[Dim], dtype: str, like: Operand | None = None) -> Tensor:
        """A fresh tensor that no gradient flows through; in the layout of ``like``."""
        dims = tuple(shape)
        tensor = Tensor(Storage(self, name, times(numel(dims), BYTES[dtype])), dims, dtype)
        tensor.strided = isinstance(like, Tensor) and like.strided
        return tensor

    def leaf(self, name: str, shape: Sequence[Dim], dtype: str, needs_grad: bool = True) -> Tensor:
        """An input of the piece that is run: its gradient ends here."""
        tensor = self.new(name, shape, dtype)
        if needs_grad and self.grad:
            tensor.node = Node("input", [], None)
        return tensor

    def forget(self, tensor: Tensor) -> Size:
        """Count a tensor no longer, because it belongs to something else; its bytes."""
        size, tensor.storage.size = tensor.storage.size, ZERO
        self.freed(size)
        return size

    def record(
        self,
        output: Tensor,
        operation: str,
        inputs: Sequence[Operand | None],
        keep: Sequence[tuple[str, Operand | None]],
        backward: Backward,
    ) -> Tensor:
        """Hang ``output`` into the graph if a gradient flows to one of ``inputs``; ``keep`` only then."""
        wanted = [_target(i) for i in inputs]
        if self.grad and any(w is not None for w in wanted):
            self._order += 1
            kept = [(name, t.storage) for name, t in keep if isinstance(t, Tensor)]
            output.node = Node(operation, wanted, backward, kept, self._order)
        return output

    def play_backward(self, output: Tensor, gradient: Tensor) -> None:
        """Run the graph from ``output`` in the order of autograd's engine: latest operation first, inputs summed.

        Lifetimes as in torch/csrc/autograd/engine.cpp ``evaluate_function``: the incoming gradient goes when a node
        is done, then what it kept, then its results are added to what waits at its inputs.
        """
        assert output.node is not None
        waiting: dict[Node, Tensor] = {output.node: gradient}
        output.node = None
        del gradient, output
        while waiting:
            node = max(waiting, key=_order)
            if node.backward is None:
                del waiting[node]
                continue
            since = len(self.moments)
            gradients = list(node.backward(waiting.pop(node)))
            fresh = self._set_apart(node, gradients, since)
            node.kept.clear()
            node.backward = None
            while gradients:
                made, target = gradients.pop(0), node.inputs.pop(0)
                if made is None or target is None:
                    continue
                if isinstance(target, Weight):
                    self._hand_over(made, fresh.pop(id(made.storage), None))
                elif target in waiting:
                    self._sum(waiting, target, made)
                else:
                    waiting[target] = made
                del made

    def _set_apart(self, node: Node, gradients: Sequence[Gradient], since: int) -> dict[int, int]:
        """Gradients of weights that a node has made are no activations from their first moment on; bytes by storage."""
        apart: dict[int, int] = {}
        for made, target in zip(gradients, node.inputs, strict=False):
            if made is None or not isinstance(target, Weight):
                continue
            if (born := made.storage.born) < since or id(made.storage) in apart:
                continue
            size = self.forget(made)
            apart[id(made.storage)] = size[0]
            self.in_hand += size[0]
            self.moments[born:] = [
                Moment(minus(m.live, size), m.weight_gradients, m.fresh_gradient, m.in_hand + size[0])
                for m in self.moments[born:]
            ]
        return apart

    def _hand_over(self, made: Tensor, apart: int | None) -> None:
        """A weight's gradient is complete; the engine takes it from here. ``apart``: its bytes if they stand apart."""
        fresh = self.forget(made)[0] if apart is None else apart
        self.in_hand -= apart or 0
        self.weight_gradients += fresh
        self.moments.append(Moment(self.live, self.weight_gradients, fresh, self.in_hand))

    def _sum(self, waiting: dict[Node, Tensor], target: Node, made: Tensor) -> None:
        """Add to the gradient that waits: in place when nobody else holds it (input_buffer.cpp)."""
        first = waiting[target]
        alone = first.base is None and sys.getrefcount(first) <= 3 and sys.getrefcount(first.storage) <= 2
        if not alone:
            waiting[target] = self.new("sum of gradients", made.shape, made.dtype)
            waiting[target].strided = first.strided


def _order(node: Node) -> int:
    return node.order


def _target(operand: Operand | None) -> Node | Weight | None:
    if isinstance(operand, Weight):
        return operand if operand.trainable else None
    return operand.node if operand is not None else None


def ledger(output: Tensor) -> tuple[tuple[Saved, ...], tuple[Storage, ...]]:
    """Every storage that the graph behind ``output`` keeps, once, in the order of the forward; and the storages."""
    nodes: list[Node] = []
    stack, seen = [output.node], set()
    while stack:
        node = stack.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        nodes.append(node)
        stack.extend(i for i in node.inputs if isinstance(i, Node))
    lines: list[Saved] = []
    held: dict[int, Storage] = {}
    for node in sorted(nodes, key=_order):
        for name, storage in node.kept:
            if id(storage) not in held:
                held[id(storage)] = storage
                lines.append(Saved(name, node.operation, storage.size))
    return tuple(lines), tuple(held.values())


def largest(moments: Sequence[Moment]) -> tuple[Moment, ...]:
    """Moments that no other exceeds in every coefficient: the only ones that can be the largest for some workload."""
    best: list[tuple[int, Moment]] = []  # a moment that covers another has at least its sum
    for moment in dict.fromkeys(moments):
        height = sum(moment.live) + moment.weight_gradients + moment.fresh_gradient + moment.in_hand
        for reached, other in best:
            if reached >= height and _covers(other, moment):
                break
        else:
            best = [(r, other) for r, other in best if r > height or not _covers(moment, other)]
            best.append((height, moment))
    return tuple([moment for _, moment in best])


def _covers(a: Moment, b: Moment) -> bool:
    if a.weight_gradients < b.weight_gradients or a.fresh_gradient < b.fresh_gradient or a.in_hand < b.in_hand:
        return False
    return all(map(int.__ge__, a.live, b.live))
