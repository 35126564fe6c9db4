"""Live bytes of a real engine, storage by storage: who allocated them, who owns them, how many at each moment.

A ``Census`` is a dispatch mode. It notes each storage that an operation returns, when it is freed (a weak reference
to the storage) or resized (FSDP frees and refills its buffers with ``storage.resize_``), and where in the engine's
code it was made. Owners are named afterwards: a storage may be labelled long after it was freed, because the notes are
a list of events that is replayed. So the composition of a peak is known even for tensors that lived for one call.

Under a dispatch mode the autograd engine adds gradients out of place where a plain run may add in place: sums of
activations' gradients read too high here. What engines hold is not touched by that.
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Files whose frames say on whose behalf a tensor is made; the innermost match names the site.
ENGINE_FILES = ("torch/distributed/fsdp/", "torch/nn/parallel/", "torch/optim/", "deepspeed/", "peft/", "bitsandbytes/")
NOT_SITES = ("torch/distributed/fsdp/_fully_shard/_fsdp_common.py",)
OTHER = "other"  # not the engine's: activations, inputs, temporaries of the network


@dataclass(eq=False, slots=True)
class Block:
    """One storage. ``label`` is what its owner calls it, empty until known; ``site`` is ``file:function``; ``derived``:
    autograd's backward made it, not a forward that runs again inside backward."""

    bytes: int
    site: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    label: str = ""
    derived: bool = False


@dataclass(frozen=True)
class Moment:
    """What was alive at one point of time: bytes by label, and the blocks themselves for whoever looks closer."""

    bytes: dict[str, int]
    blocks: tuple[tuple[Block, int], ...] = field(repr=False, default=())

    @property
    def total(self) -> int:
        return sum(self.bytes.values())


class Census(TorchDispatchMode):
    """Notes every storage that lives while the mode is on.

    ``label_by_site`` gives a label to blocks that nobody owns (collective buffers); it sees the block and answers a
    label or an empty string. ``label_inputs`` maps a piece of an operator's name to the label of the tensors it reads
    (``"chunk_cat"`` reads unsharded gradients). ``count_fake``: fake tensors count too; without it they do not, because
    DTensor asks fake tensors of global shape for the shapes of its results.
    """

    def __init__(
        self,
        label_by_site: Callable[[Block], str] = lambda block: "",
        label_inputs: dict[str, str] | None = None,
        count_fake: bool = False,
    ) -> None:
        super().__init__()
        self._count_fake = count_fake
        self._label_by_site = label_by_site
        self._label_inputs = label_inputs or {}
        self._alive: dict[int, Block] = {}
        self._watched: dict[Block, Any] = {}
        self._events: list[tuple[Block, int, str]] = []  # block, its change in bytes, the region
        self._region = ""
        self._marks: list[tuple[str, int, int]] = []  # phase and its range of events

    # -- noting ------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(t.__name__ == "DTensor" for t in types):
            return NotImplemented  # let it become an operation on its local tensor first
        for piece, label in self._label_inputs.items():
            if piece in str(func):
                self.own(label, (t for t in tree_leaves(args) if isinstance(t, torch.Tensor)), weak=True)
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf)
        return result

    def _note(self, tensor: torch.Tensor) -> Block | None:
        tensor = getattr(tensor, "_local_tensor", tensor)
        if tensor.device.type == "meta" or (isinstance(tensor, FakeTensor) and not self._count_fake):
            return None
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        block = self._alive.get(key)
        if block is None:
            derived = torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()
            shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            block = self._alive[key] = Block(0, _site(), shape, dtype, derived=derived)
            self._watched[block] = weakref.ref(storage, lambda _, key=key, block=block: self._gone(key, block))
        self._change(block, size)
        return block

    def _gone(self, key: int, block: Block) -> None:
        if self._alive.get(key) is block:
            del self._alive[key]
        self._watched.pop(block, None)
        self._change(block, 0)

    def _change(self, block: Block, size: int) -> None:
        if size != block.bytes:
            self._events.append((block, size - block.bytes, self._region))
            block.bytes = size

    def __enter__(self) -> Census:
        original = torch.UntypedStorage.resize_
        self._original_resize = original

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = original(storage, size)
            block = self._alive.get(storage._cdata)
            if block is not None:
                self._change(block, storage.nbytes())
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._original_resize  # type: ignore[method-assign]
        super().__exit__(*error)

    # -- naming ------------------------------------------------------------------------------------------------

    def own(self, label: str, tensors: Iterable[torch.Tensor | None], weak: bool = False) -> None:
        """Say what these tensors are. Storages that were made before the census began are noted now.

        ``weak``: a label that was given before stays.
        """
        for tensor in tensors:
            if tensor is not None and (block := self._note(tensor)) is not None and not (weak and block.label):
                block.label = label

    def label_sites(self, labels: Mapping[str, str]) -> None:
        """Label blocks that nobody owns by a piece of the site that made them (``file:function``)."""
        before = self._label_by_site

        def label(block: Block) -> str:
            return next((name for piece, name in labels.items() if piece in block.site), "") or before(block)

        self._label_by_site = label

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Events inside belong to this phase; the same name may be entered again, the last time counts."""
        first = len(self._events)
        yield
        self._marks.append((name, first, len(self._events)))

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Mark the events inside as part of something that happens again and again, such as a reduction."""
        outer, self._region = self._region, name
        try:
            yield
        finally:
            self._region = outer

    def mark_calls(self, owner: Any, function: str, region: str) -> Callable[[], None]:
        """Every call of ``owner.function`` becomes a region; the answer undoes it."""
        original = getattr(owner, function)

        @wraps(original)
        def marked(*args: Any, **kwargs: Any) -> Any:
            with self.region(region):
                return original(*args, **kwargs)

        setattr(owner, function, marked)
        return lambda: setattr(owner, function, original)

    def own_before(
        self, owner: Any, function: str, label: str, tensors: Callable[..., Iterable[Any]]
    ) -> Callable[[], None]:
        """Before every call of ``owner.function``, label what ``tensors`` finds in its arguments."""
        original = getattr(owner, function)

        @wraps(original)
        def labelled(*args: Any, **kwargs: Any) -> Any:
            self.own(label, tensors(*args), weak=True)
            return original(*args, **kwargs)

        setattr(owner, function, labelled)
        return lambda: setattr(owner, function, original)

    def until_freed(self, site: str, seconds: float = 2.0) -> None:
        """Wait for storages made there whose last owner is a thread of gloo: it lets go a moment after the call."""
        end = time.monotonic() + seconds
        while any(site in block.site for block in list(self._alive.values())) and time.monotonic() < end:
            time.sleep(0.001)

    # -- reading -----------------------------------------------------------------------------------------------

    def label(self, block: Block) -> str:
        return block.label or self._label_by_site(block) or OTHER

    def now(self) -> Moment:
        """What is alive at this moment."""
        return self._moment({block: block.bytes for block in self._alive.values() if block.bytes})

    def peak(
        self, phase: str, without: tuple[str, ...] = (OTHER,), region: str | None = None, outside: str | None = None
    ) -> Moment:
        """The moment of a phase at which the sum of all labels but ``without`` was largest, and what it consisted of.

        ``region``: only moments inside it; ``outside``: only moments that are not. A phase without such a moment is
        read at its beginning.
        """
        first, last = next((a, b) for name, a, b in reversed(self._marks) if name == phase)
        counted: dict[Block, bool] = {}
        alive: dict[Block, int] = {}
        total = best = 0
        at = first
        for index, (block, change, where) in enumerate(self._events[:last]):
            if block not in counted:
                counted[block] = self.label(block) not in without
            total += change if counted[block] else 0
            if index < first or where == outside or (region is not None and where != region):
                continue
            if total > best:
                best, at = total, index + 1
        for block, change, _ in self._events[:at]:
            alive[block] = alive.get(block, 0) + change
        return self._moment({block: size for block, size in alive.items() if size})

    def _moment(self, alive: dict[Block, int]) -> Moment:
        found: dict[str, int] = {}
        for block, size in alive.items():
            label = self.label(block)
            found[label] = found.get(label, 0) + size
        return Moment(found, tuple(alive.items()))

    def events(self, phase: str) -> Iterator[tuple[str, int, str]]:
        """Label, change and site of each event of a phase, to read what an engine did in order."""
        first, last = next((a, b) for name, a, b in reversed(self._marks) if name == phase)
        return (
            (self.label(block), change, f"{where or '-'} {block.site}")
            for block, change, where in self._events[first:last]
        )


def _site() -> str:
    """``file:function`` of the innermost frame of an engine, or of the innermost frame outside torch's dispatcher."""
    frame = sys._getframe(2)
    fallback = ""
    for _ in range(60):
        if frame is None:
            break
        name = frame.f_code.co_filename
        for piece in ENGINE_FILES:
            at = name.find(piece)
            if at >= 0 and not name.endswith(NOT_SITES):
                return f"{name[at:]}:{frame.f_code.co_name}"
        if not fallback and "/torch/" not in name and not name.endswith("census.py"):
            fallback = f"{name.rpartition('/')[2]}:{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return fallback or "torch"


@contextmanager
def without_collector() -> Iterator[None]:
    """Cycles are freed between steps, not wherever the collector happens to run: equal runs have equal events."""
    gc.collect()
    gc.freeze()  # what is imported is not looked through again after each step
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
