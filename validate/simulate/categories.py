"""What a storage is: by who owns it, else by where and when it was made.

Owners win: parameters, gradients, masters, states and buffers are labelled by the engines' own attributes. The rest
belongs to the network: ``logits`` when a tensor has the vocabulary for its last dimension or is made by the loss,
``activations`` when the network's own code or its autograd makes it, ``temporaries`` when an optimizer makes it.
"""

from __future__ import annotations

from math import prod

from estimators.run import Run
from validate.census import OTHER, Block
from validate.simulate.batches import vocabulary
from validate.simulate.ledger import Ledger

FLAT = 9000
SCALAR = 16  # elements: counters, norms and flags are counted as what they are made for, or as temporaries


Shape = tuple[int, ...]


class Categories:
    """Names storages of one run."""

    def __init__(
        self, ledger: Ledger, vocabulary: int, shapes: frozenset[Shape], streams: frozenset[Shape], flat: bool
    ) -> None:
        self._ledger = ledger
        self._vocabulary = vocabulary
        self._shapes = shapes  # of trainable parameters: gradients that nobody owns when the engine takes them
        self._streams = streams  # of a block's input, whose gradient is handed on as that of positions
        self._flat = flat  # FSDP1: a long vector is the gradient of a unit's flat parameter
        self._found: dict[Block, str] = {}

    @classmethod
    def of(cls, ledger: Ledger, run: Run) -> Categories:
        """Those of the network that ``run`` trains. A gradient's shape is one that no activation has: not that of a row
        for each token (and expert that serves it), nor that of positions, which are added to one sample's stream."""
        rows = run.workload.micro_batch * run.workload.seq_len
        served = int(run.model.config.get("num_experts_per_tok") or 1)
        shapes = {p.shape for _, p in run.model.named_parameters() if p.trainable}
        positions = frozenset(shape for shape in shapes if len(shape) == 3 and shape[0] == 1)
        gradients = frozenset(shape for shape in shapes - positions if shape[0] not in (rows, rows * served))
        streams = positions if _reduces_early(run) else frozenset[Shape]()
        return cls(ledger, vocabulary(run.model), gradients, streams, run.strategy.engine == "fsdp1")

    def __call__(self, block: Block, phase: str) -> str:
        """The category; ``phase`` is the one in which the block was made."""
        found = self._found.get(block)
        if found is None:
            found = self._found[block] = self._name(block, phase)
        return found

    def _name(self, block: Block, phase: str) -> str:
        label = self._ledger.label(block)
        if block.derived and block.shape in self._streams:  # of one sample: an activation's until it is a weight's
            return "activations"
        if label != OTHER:
            return label
        if phase == "backward" and self._is_gradient(block):
            return "gradients"
        if phase in ("step", "build", "start") or "torch/optim" in block.site:
            return "temporaries"
        if phase == "loss" and prod(block.shape) <= SCALAR:
            return "logits"
        if self._is_logits(block, phase):
            return "logits"
        return "activations"

    def _is_logits(self, block: Block, phase: str) -> bool:
        wide = bool(self._vocabulary) and self._vocabulary in block.shape[-1:]
        return wide or (phase == "loss" and "loss" in block.site)

    def _is_gradient(self, block: Block) -> bool:
        """Parts of a sum (a shared matrix), or copied into a bucket at once: never anybody's ``.grad``."""
        if not block.derived:  # a weight's copy, made where its block runs again
            return False
        shape = tuple(size for size in block.shape if size != 1)
        return shape in self._shapes or (self._flat and len(shape) == 1 and shape[0] > FLAT)


def _reduces_early(run: Run) -> bool:
    """Whether the engine takes gradients away inside backward."""
    return run.strategy.engine in ("fsdp1", "fsdp2") or (run.strategy.stage or 0) >= 2
