"""Hooks on a model and an optimizer that cut each step of a run into the instants of the contract.

forward begins where the model is called, loss where its head is, backward with the gradient of the outputs, step where
the optimizer begins. A CUDA device has counters, read where a window ends. On a CPU the heap is sampled there and at
the borders of the blocks, forward and backward. A loop of its own kind marks what the hooks cannot see:
``recording.begin("loss")``, ``with recording.region("reduce")``.

What the recording does is timed. Above ``SHARE`` of the time of the steps it rests until it is below again.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from estimators.errors import InputError, MissingDependency
from estimators.result import INSTANTS

if TYPE_CHECKING:
    import os

    from estimators.memory import Estimate
    from validate.device import Device
    from validate.training.comparison import Comparison

SHARE = 0.005  # of the time of all steps
SURE = 3  # steps that are recorded whatever they cost: the optimizer's states are new in the first
NODES = 12  # of the graph from the loss on: between them lie the copies of logits in which backward begins


class Recording:
    """The largest that the device held in each instant of the steps so far. Use :func:`record`."""

    def __init__(self, model: Any, device: Device, predicted: Estimate | None, share: float = SHARE) -> None:
        self.device, self.predicted = device, predicted
        self.peaks: dict[str, int] = {}
        self.reserved: dict[str, int] = {}
        self.steps = self.recorded_steps = 0
        self.own_seconds = self.seconds = 0.0
        self.batch: tuple[int, int] | None = None  # the largest micro-batch and sequence so far
        self._share, self._open, self._is_on, self._is_closed = share, "", True, False
        self._sample: Callable[[], None] | None = getattr(device, "sample", None)
        rebases = getattr(device, "knows_all", False)
        self._rebase: Callable[[int], None] | None = getattr(device, "rebase", None) if rebases else None
        self._undo: list[Callable[[], None]] = []
        self._model, self._optimizer = model, None
        self._answers: list[Any] = []  # weakly: what the loop may still hold of the last forward
        self._micro_steps = 0
        self._began: float | None = None
        self._watch(model)

    # -- what a loop may call --------------------------------------------------------------------------------------

    def begin(self, instant: str) -> None:
        """From here on the run is in this instant; the same again changes nothing."""
        if instant not in INSTANTS and instant:
            raise InputError(f"instant {instant!r} is not one of {', '.join(INSTANTS)}")
        if not self._is_on or instant == self._open:
            return
        started = time.thread_time()
        if self._open:
            self.peaks[self._open] = max(self.peaks.get(self._open, 0), self.device.allocated())
            held = self.device.reserved()
            if held is not None:
                self.reserved[self._open] = max(self.reserved.get(self._open, 0), held)
        self.device.reset()
        self._open = instant
        self.own_seconds += time.thread_time() - started

    @contextmanager
    def region(self, instant: str) -> Iterator[None]:
        """Inside, the run is in this instant; afterwards in the one before."""
        before = self._open
        self.begin(instant)
        try:
            yield
        finally:
            self.begin(before)

    def close(self) -> None:
        """Take the hooks away. What was recorded stays."""
        if not self._is_closed:
            self.begin("")
            self._is_closed, self._is_on = True, False
            for action in self._undo:
                action()

    def report(self) -> Comparison:
        """Measured beside predicted, of this rank."""
        from validate.training.comparison import compared

        return compared(self)

    @property
    def own_share(self) -> float:
        """Seconds spent here over seconds of all steps after the first."""
        return self.own_seconds / self.seconds if self.seconds else 0.0

    # -- hooks -----------------------------------------------------------------------------------------------------

    def _watch(self, model: Any) -> None:
        self._hook(model.register_forward_pre_hook(self._called, with_kwargs=True, prepend=True))
        self._hook(model.register_forward_hook(self._answered))
        inner = getattr(model, "module", model)
        find = getattr(inner, "get_output_embeddings", None)
        head = find() if callable(find) else None
        if head is not None:
            self._hook(head.register_forward_pre_hook(lambda *_: self._in_forward("loss"), prepend=True))
        if self._sample is not None:
            for module in (*_blocks(inner), *([head] if head is not None else [])):
                self._hook(module.register_forward_hook(self._passed))

    def attach(self, optimizer: Any) -> None:
        """Know where the step of a torch optimizer, or of what wraps one, begins and ends."""
        while hasattr(optimizer, "optimizer"):
            optimizer = optimizer.optimizer
        if not hasattr(optimizer, "register_step_post_hook"):
            raise InputError(
                f"{type(optimizer).__name__} is not a torch optimizer; call begin('step') and stepped() instead"
            )
        self._optimizer = optimizer
        self._hook(optimizer.register_step_pre_hook(lambda *_: self.begin("step")))
        self._hook(optimizer.register_step_post_hook(lambda *_: self.stepped()))

    def stepped(self) -> None:
        """An optimizer step is done: the instants of the next one follow."""
        self.begin("")
        self._micro_steps = 0
        now = time.perf_counter()
        self.steps += 1
        self.recorded_steps += self._is_on
        if self._began is None:  # the first step makes the states: what it took is no measure
            self.own_seconds = 0.0
        else:
            self.seconds += now - self._began
        self._began = now
        self._is_on = not self._is_closed and (self.steps < SURE or self.own_share <= self._share)

    def _tensors_held(self) -> list[Any]:
        states = self._optimizer.state.values() if self._optimizer is not None else ()
        return [
            *held_by(self._model),
            *(t for state in states for t in state.values() if hasattr(t, "untyped_storage")),
        ]

    def _hook(self, handle: Any) -> None:
        self._undo.append(handle.remove)

    def _called(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._is_on or not module.training:
            return
        if self._rebase is not None and self._open != "forward" and self._micro_steps == 0 and 0 < self.steps < SURE:
            # the first steps made caches of kernels and threads, which are no tensors
            answers = [t for reference in self._answers if (t := reference()) is not None]
            self._rebase(_bytes_of([*self._tensors_held(), *answers]) + bucket_bytes(self._model))
            self.peaks.clear()
        self._micro_steps += 1
        self.begin("forward")
        ids = kwargs.get("input_ids", args[0] if args else None)
        shape = tuple(getattr(ids, "shape", ()))
        if len(shape) == 2 and (self.batch is None or shape[0] * shape[1] > self.batch[0] * self.batch[1]):
            self.batch = (int(shape[0]), int(shape[1]))

    def _in_forward(self, instant: str) -> None:
        if self._open == "forward":  # recomputation in backward calls modules too
            self.begin(instant)

    def _answered(self, module: Any, args: Any, output: Any) -> None:
        if not self._is_on or not module.training or (tensor := _with_gradient(output)) is None:
            return
        self._look()
        self._answers = [weakref.ref(t) for t in _tensors(output)]
        tensor.register_hook(lambda gradient: self.begin("backward"))
        node = tensor.grad_fn
        for _ in range(NODES if self._sample is not None else 0):
            if node is None:
                break
            node.register_hook(lambda *_: self._look())
            node = node.next_functions[0][0] if node.next_functions else None

    def _passed(self, module: Any, args: Any, output: Any) -> None:
        if self._is_on and self._open:
            self._look()
            if (tensor := _with_gradient(output)) is not None:
                tensor.register_hook(lambda gradient: self._look())

    def _look(self) -> None:
        if self._is_on and self._sample is not None:
            started = time.thread_time()
            self._sample()
            self.own_seconds += time.thread_time() - started


def _blocks(model: Any) -> list[Any]:
    """The members of the longest list of modules."""
    lists = [list(m) for m in model.modules() if type(m).__name__ == "ModuleList"]
    return max(lists, key=len, default=[])


def _tensors(output: Any) -> list[Any]:
    """Those of a tensor, a tuple, or what transformers returns."""
    found = list(output.values()) if isinstance(output, dict) else output
    return [t for t in (found if isinstance(found, (tuple, list)) else [found]) if hasattr(t, "untyped_storage")]


def _with_gradient(output: Any) -> Any | None:
    """The first tensor of an output through which gradients come back: its loss, where it has one."""
    return next((t for t in _tensors(output) if t.requires_grad), None)


@contextmanager
def record(
    model: Any,
    optimizer: Any = None,
    predicted: str | os.PathLike[str] | Estimate | None = None,
    *,
    device: Device | None = None,
) -> Iterator[Recording]:
    """Record a plain loop from here to the end of the block.

    ``predicted``: a folder that ``recommend --emit`` wrote, or an ``Estimate``; without it there are only measurements.
    ``device``: counts in place of the model's own. Without ``optimizer`` the loop calls ``begin("step")`` and
    ``stepped()``.

    Raises ``InputError`` for a folder that cannot be read or an optimizer that is none, ``MissingDependency`` without
    torch.
    """  # fmt: skip
    recording = recording_of(model, predicted, device)
    try:
        if optimizer is not None:
            recording.attach(optimizer)
        yield recording
    finally:
        recording.close()


def recording_of(
    model: Any, predicted: str | os.PathLike[str] | Estimate | None, device: Device | None = None
) -> Recording:
    """A recording of a model, on the device where its parameters are."""
    from validate.training.comparison import estimate_of

    expected = estimate_of(predicted)
    try:
        import torch
    except ModuleNotFoundError:
        raise MissingDependency("torch is not installed; pip install 'dist-advisor[engines]'") from None
    if device is None and torch.cuda.is_available() and _type_of(model) == "cuda":
        from validate.device import CudaDevice

        device = CudaDevice(torch.cuda.current_device())
    if device is None:
        from validate.training.heap import HeapDevice

        device = HeapDevice(_bytes_of(held_by(model)) + bucket_bytes(model), not _has_more(model))
    return Recording(model, device, expected)


def _type_of(model: Any) -> str:
    first = next(iter(model.parameters()), None)
    return "cpu" if first is None else str(first.device.type)


def _has_more(model: Any) -> bool:
    """Whether an engine may hold tensors between steps that neither a module nor an optimizer names."""
    import torch.distributed as dist

    is_alone = not (dist.is_available() and dist.is_initialized())
    return not (is_alone or _is_ddp(model) or all(hasattr(p, "_local_tensor") for p in model.parameters()))


def _is_ddp(model: Any) -> bool:
    return type(model).__name__ == "DistributedDataParallel"


def bucket_bytes(model: Any) -> int:
    """DDP's buckets, which no module names: a second copy of all gradients, made with the wrapper; none beside
    gradients that are views into them."""
    if not _is_ddp(model):
        return 0
    trained = [p for p in model.parameters() if p.requires_grad]
    views = model.gradient_as_bucket_view
    return sum(p.numel() * p.element_size() for p in trained if not views or p.grad is None)


def held_by(model: Any) -> list[Any]:
    """Parameters, their gradients, buffers."""
    return [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]


def _bytes_of(tensors: list[Any]) -> int:
    """Of their storages, each once."""
    storages = {}
    for tensor in tensors:
        storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
