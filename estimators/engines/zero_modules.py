"""A model as ZeRO-3's hooks see it: which module is called when, forward and backward, and what it owns.

Derived from the names of parameters: a module is the path in front of ``.weight``, and everything around it that is
not a list of modules is called too. Source of the order: parameter_offload.py (``_register_deepspeed_module``) and
traces of the real hooks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter

from estimators.engines.sharding.order import execution_order, used_order
from estimators.engines.zero_layout import Spot
from estimators.engines.zero_leaves import (
    SILENT,
    TABLES,
    Leaf,
    containers,
    elements_below,
    leaf_in,
    leaves_of,
    with_silent,
    with_tables,
)
from estimators.model.spec import ModelSpec, Part
from estimators.values import NamedTuple, dataclass

FETCH, RELEASE, GRADIENT, HALF = "fetch", "release", "gradient", "half of a tied gradient"
MADE = "gradient that waits for its leaf module"
FORWARD, BACKWARD, RECOMPUTE = "forward", "backward", "recompute"
PEFT = ("PeftModel", "LoraModel")  # around the whole model
# Siblings that read the same input: a gradient of one does not reach the other.
_PARALLEL = ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "gate_proj", "up_proj")


class Call(NamedTuple):
    """One event: a module is fetched or released, or the gradients of its parameters arrive.

    ``below``: where a model has whole modules, elements of everything inside a module that is fetched. ``inner``: the
    path inside the block.
    """

    kind: str
    phase: str
    path: str
    owned: tuple[int, ...]
    spot: Spot | None = None  # the block around it; None outside blocks, and for modules around blocks
    is_whole: bool = False
    below: int = 0
    inner: str = ""


class Round(NamedTuple):
    """Calls in a row, made ``times`` times; parameters and place move on by a block from one time to the next."""

    calls: tuple[Call, ...]
    times: int = 1
    shift: int = 0  # of the numbers of parameters
    step: int = 0  # of the block's index: 1 forwards, -1 backwards

    def fetches(self, time: int) -> list[tuple[int, ...]]:
        """Parameters of each module that is fetched."""
        shift = time * self.shift
        return [tuple([i + shift for i in call.owned]) for call in self.calls if call.kind == FETCH]


@dataclass(frozen=True, eq=False)
class Modules:
    """Parameters by number, in the order of ``named_parameters``, and the calls of one micro-step.

    Paths tell modules of one parameter apart; in a round that is made several times they are those of one block.
    """

    numels: tuple[int, ...]
    trains: tuple[bool, ...]
    rounds: tuple[Round, ...]


SHOWN = 4  # blocks of a run whose calls are worked out: the first, two that are alike, the last


@lru_cache(maxsize=128)
def modules(model: ModelSpec, recompute: bool, folded: bool = True) -> Modules:
    """Calls of one forward and backward. ``recompute``: blocks run forward again inside backward.

    ``folded``: of a long run the blocks between the first and the last are one round. Their calls are those of the
    second and the third: the same parameters, and the same stands before each.
    """
    numels: list[int] = []
    trains: list[bool] = []
    by_part: list[list[Leaf]] = []
    roots: dict[str, int] = {}
    spots: dict[str, Spot] = {}
    number = -1
    silent = {path: name for part in model.blocks for path, name in SILENT.get(part.class_name, {}).items()}
    for part in model.parts:
        whole, start = leaf_in(part), len(numels)
        order = (used_order if whole else execution_order)(part)
        number += part.is_block
        by_part.append([])
        for index in _shown(part) if folded else range(part.count):
            base, names = start + index * len(part.parameters), list(part.names(index))
            block = ""
            if part.is_block:
                block = part.prefix.format(part.first + index)
                spots[block] = (number, index)
            else:
                roots.update((name, base + i) for i, name in enumerate(names))
            found = leaves_of(names, [base + i for i in order], base, block, whole and f"{block}.{whole}")
            by_part[-1].extend(with_silent(found, block, silent))
        numels.extend([p.numel for p in part.parameters] * part.count)
        trains.extend([p.trainable for p in part.parameters] * part.count)
    shared = {name.rpartition(".")[0]: roots[to] for name, to in model.tied.items() if to in roots}
    leaves = with_tables(_in_order(model, by_part), shared, silent)
    heads = [Leaf(path, (number,), "") for path, number in shared.items() if path not in TABLES]
    tied = {roots[to] for to in model.tied.values() if to in roots}
    places: dict[str, tuple[Spot | None, str]] = {}
    below = _below(model, leaves, numels)
    calls = []
    tower = frozenset(leaf.path for at in model.tower for leaf in by_part[at])
    for call in _Calls([*leaves, *heads], trains, tied, tower, _readers(model)).all(recompute):
        path = call.path
        if path not in places:
            block = _block_of(path, spots)
            places[path] = spots.get(block), path[len(block) + 1 :] if block else ""
        size = below.get(path, 0) if call.kind == FETCH else 0
        spot, inner = places[path]
        calls.append(Call(*call[:4], spot, call.is_whole, size, inner))
    rounds = _rounds(calls, model) if folded else (Round(tuple(calls)),)
    return Modules(tuple(numels), tuple(trains), rounds) if rounds else modules(model, recompute, False)


def _below(model: ModelSpec, leaves: list[Leaf], numels: list[int]) -> dict[str, int]:
    """Elements inside each module; nothing for models without whole modules, for which nobody asks."""
    found: dict[str, int] = {}
    if not any(leaf.is_whole for leaf in leaves):
        return found
    for leaf in leaves:
        size = found[leaf.path] = sum([numels[i] for i in leaf.owned])
        for path in containers(leaf.path):
            if leaf.block and path.startswith(leaf.block):
                found[path] = found.get(path, 0) + size
            elif path not in found:
                found[path] = elements_below(model, path)
    return found


def _shown(part: Part) -> Sequence[int]:
    return range(part.count) if part.count <= SHOWN else (0, 1, 2, part.count - 1)


def _rounds(calls: list[Call], model: ModelSpec) -> tuple[Round, ...]:
    """The calls of the whole model; nothing where the blocks in the middle are not alike."""
    made: list[Round] = []
    once: list[Call] = []
    waiting: list[Call] = []  # the calls of one of the two blocks that stand for all in the middle
    for spot, group in groupby(calls, key=attrgetter("spot")):
        here = list(group)
        if spot is None or spot[1] not in (1, 2) or model.blocks[spot[0]].count <= SHOWN:
            if waiting:
                return ()
            once += here
        elif not waiting:
            waiting = here
        else:
            part, number, index = model.blocks[spot[0]], spot[0], 3 - spot[1]  # of the block before
            step = spot[1] - index
            shift = step * len(part.parameters)
            if here != _moved(waiting, shift, (number, spot[1]), here):
                return ()
            ahead = part.count - 2 - index if step < 0 else 0  # backwards the last of them comes first
            first = _moved(waiting, -shift * ahead, (number, index + ahead), waiting)
            made += [Round(tuple(once)), Round(tuple(first), part.count - 2, shift, step)]
            once, waiting = [], []
    return () if waiting else (*made, Round(tuple(once)))


def _moved(calls: list[Call], shift: int, spot: Spot, named: list[Call]) -> list[Call]:
    """The calls of a block as another block makes them, with its paths."""
    if len(named) != len(calls):
        return []
    return [
        call._replace(path=other.path, owned=tuple([i + shift for i in call.owned]), spot=spot)
        for call, other in zip(calls, named, strict=True)
    ]


def _block_of(path: str, spots: dict[str, Spot]) -> str:
    """The block that a module lies in, by the first number in its path that names one."""
    pieces = path.split(".")
    for depth, piece in enumerate(pieces):
        if piece.isdigit() and (stem := ".".join(pieces[: depth + 1])) in spots:
            return stem
    return ""


def _readers(model: ModelSpec) -> frozenset[str]:
    """Modules of the root that read ids or pixels: lookups, and the first convolution of a part."""
    found: set[str] = set()
    for part in model.roots:
        paths = {kind: [p.name.rpartition(".")[0] for p in part.parameters if p.kind == kind]
                 for kind in ("embedding", "conv")}  # fmt: skip
        found.update(paths["embedding"], paths["conv"][:1])
    return frozenset((*found, *TABLES))


def _in_order(model: ModelSpec, by_part: Sequence[list[Leaf]]) -> list[Leaf]:
    """All leaves as they run. Those that own only buffers (rotary embeddings) are called behind the embedding of their
    stack: in front of its first block."""
    leaves = [leaf for at in model.executed for leaf in by_part[at]]
    paths = {b.name.rpartition(".")[0]: None for part in model.parts for b in part.buffers if "{}" not in part.prefix}
    silent = [Leaf(path, (), "") for path in paths]
    if not model.words_first:
        return [*leaves[:1], *silent, *leaves[1:]]
    for leaf in silent:
        stem = leaf.path.rpartition(".")[0] + "."
        behind = (at for at, other in enumerate(leaves) if other.block.startswith(stem))
        leaves.insert(next(behind, 1), leaf)
    return leaves


def _asked(leaves: list[Leaf]) -> dict[str, tuple[int, ...]]:
    """``self.wo.weight.dtype`` in ``T5DenseActDense.forward``."""
    found: dict[str, tuple[int, ...]] = {}
    for leaf in leaves:
        mlp, asks, inside = leaf.path.partition(".DenseReluDense.wo")
        if asks and inside in ("", ".base_layer"):
            found[f"{mlp}.DenseReluDense"] = leaf.owned
    return found


class _Calls:
    """Walks the leaves; a container opens before its first leaf and closes behind its last."""

    def __init__(
        self,
        leaves: list[Leaf],
        trains: list[bool],
        tied: set[int],
        tower: frozenset[str],
        readers: frozenset[str],
    ) -> None:
        self.leaves, self.trains, self.tied, self.tower, self.readers = leaves, trains, tied, tower, readers
        outer = PEFT if any(".lora_A." in leaf.path for leaf in leaves) else ()
        self.around = {leaf.path: [*outer, *containers(leaf.path)] for leaf in leaves}
        if tower:  # words are looked up by the model around the language model, which is not called yet
            self.around[leaves[0].path] = self.around[leaves[0].path][:-1]
        # peft's layers ask for the dtype of lora_A, T5's MLP for that of wo: DeepSpeed makes an external parameter of it
        self.adapted = {self.around[leaf.path][-1]: leaf.owned for leaf in leaves if ".lora_A." in leaf.path}
        self.external = {**_asked(leaves), **self.adapted}
        self.fed: set[str] = set()  # modules whose input needs a gradient
        self.inside: dict[str, list[Leaf]] = {}
        for leaf in leaves:
            self.inside.setdefault(leaf.block, []).append(leaf)

    def all(self, recompute: bool) -> Iterator[Call]:
        open_: list[str] = []
        for leaf in self.leaves:
            yield from self._move(open_, self.around[leaf.path], FORWARD)
            yield Call(FETCH, FORWARD, leaf.path, leaf.owned, is_whole=leaf.is_whole)
            yield Call(RELEASE, FORWARD, leaf.path, leaf.owned, is_whole=leaf.is_whole)
        yield from self._move(open_, [], FORWARD)
        yield from self._backward(recompute)

    def _move(self, open_: list[str], wanted: list[str], phase: str) -> Iterator[Call]:
        """Close what is left, open what is entered."""
        while open_ and open_[-1] not in wanted:
            path = open_.pop()
            if phase != BACKWARD or path in self.fed:
                yield Call(RELEASE, phase, path, self.external.get(path, ()))
        for path in wanted[len(open_) :]:
            open_.append(path)
            yield Call(FETCH, phase, path, self.external.get(path, ()))

    def _backward(self, recompute: bool) -> Iterator[Call]:
        """The reverse; a block runs forward again when its last module is reached.

        A module whose input needs no gradient is not released: the embedding, and adapters on the first block.
        """
        first, block = self.leaves[0].path, ""
        open_: list[str] = []
        reached = self._reached(recompute)
        for leaf in reversed(self.leaves):
            if leaf.path not in reached:
                continue
            yield from self._move(open_, self.around[leaf.path], BACKWARD)
            yield Call(FETCH, BACKWARD, leaf.path, leaf.owned, is_whole=leaf.is_whole)
            if recompute and leaf.block and leaf.block != block:
                yield from self._recomputed(leaf.block)
            block = leaf.block
            half = leaf.path != first and self.tied.intersection(leaf.owned)
            if leaf.is_whole:
                yield Call(MADE, BACKWARD, leaf.path, leaf.arriving)
            yield Call(HALF if half else GRADIENT, BACKWARD, leaf.path, leaf.owned)
            if leaf.path in self.fed:
                yield Call(RELEASE, BACKWARD, leaf.path, leaf.owned, is_whole=leaf.is_whole)

    def _reached(self, recompute: bool) -> set[str]:
        """Modules whose output needs a gradient: the hooks of the others never fire.

        peft lets the embedding's output need one where blocks are recomputed (``enable_input_require_grads``).
        """
        needs = bool(recompute and self.adapted)
        found: set[str] = set()
        opened: set[str] = set()
        entered, before, inside, within = "", needs, "", False
        words: bool | None = None  # whether they need one, while the tower that sees images has its turn
        for leaf in self.leaves:
            if leaf.owned and (leaf.path in self.tower) != (words is not None):
                words, needs = (needs, False) if words is None else (None, needs or words)
            name = next((n for n in leaf.path.split(".") if n in _PARALLEL), "")
            parent = leaf.path.partition("." + name)[0] if name else ""
            if parent != entered:
                entered, before = parent, needs
            if f"{parent}.{name}" != inside:
                inside, within = f"{parent}.{name}", False
            if leaf.path in TABLES:  # of a stack that begins
                needs = bool(recompute and self.adapted)
            is_fed = before or within if parent else needs
            if is_fed and leaf is not self.leaves[0] and leaf.path not in self.readers:
                self.fed.update((leaf.path, *(c for c in self.around[leaf.path] if c not in opened)))
            opened.update(self.around[leaf.path])
            trained = any(self.trains[i] for i in leaf.owned)
            is_silent = not leaf.owned and not leaf.block and "drop" not in leaf.path
            if not is_silent and (trained or is_fed):
                found.add(leaf.path)
            needs, within = needs or trained, within or trained
        return found

    def _recomputed(self, block: str) -> Iterator[Call]:
        """The block itself is not called again, and recomputation stops inside its last module."""
        leaves = self.inside[block]
        open_: list[str] = []
        for leaf in leaves:
            yield from self._move(open_, [c for c in self.around[leaf.path] if c.startswith(block + ".")], RECOMPUTE)
            yield Call(FETCH, RECOMPUTE, leaf.path, leaf.owned, is_whole=leaf.is_whole)
            if leaf is not leaves[-1]:
                yield Call(RELEASE, RECOMPUTE, leaf.path, leaf.owned, is_whole=leaf.is_whole)
