"""What the real modules keep and hold, under fake tensors: the truth that ledgers are compared with."""

from __future__ import annotations

import contextlib
import sys
import unittest.mock
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Kept = tuple[str, int]  # dtype, bytes of the storage


# FunctionsManual.cpp writes these in place into fresh zeros, except for tensor subclasses such as fake tensors.
SCATTERS = {
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
    torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
}


class Live(TorchDispatchMode):
    """Bytes of all storages that were made inside this mode and are alive, and their largest sum.

    Under any dispatch mode autograd's engine sums gradients out of place, which it does not do in a plain run when it
    holds the last reference (torch/csrc/autograd/input_buffer.cpp, ``can_accumulate_inplace``). Those sums are found
    (additions inside the engine) and done in place here where a plain run would.
    """

    def __init__(self, outside: Any = ()) -> None:
        super().__init__()
        self.sizes: dict[int, Any] = {}
        self.outside = [t.untyped_storage() for t in tree_leaves(outside) if isinstance(t, torch.Tensor)]
        self.known = {s._cdata for s in self.outside}
        self.current = self.peak = 0
        self.in_sdpa = False
        self.trace: list[tuple[str, str, int]] = []

    def note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.sizes or key in self.known:
            return
        size = storage.nbytes()
        self.current += size

        def gone(_: Any) -> None:
            del self.sizes[key]
            self.current -= size

        self.sizes[key] = weakref.ref(storage, gone)

    def forget(self, tensor: torch.Tensor) -> int:
        """Count a tensor no longer, because it belongs to what comes next; its bytes."""
        storage = tensor.untyped_storage()
        if self.sizes.pop(storage._cdata, None) is None:
            return 0
        self.known.add(storage._cdata)
        self.outside.append(storage)
        self.current -= storage.nbytes()
        return storage.nbytes()

    def restart(self) -> None:
        self.peak = self.current
        self.trace.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.add.Tensor and (self.in_sdpa or self.sums_in_place(args)):
            result = args[0].add_(args[1])
        elif func is torch.ops.aten._safe_softmax.default:
            result = self.safe_softmax(*args[:2])
        elif func in SCATTERS and torch._C._current_graph_task_id() != -1:
            result = SCATTERS[func](*args, **(kwargs or {}))
        else:
            result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.note(leaf)
        self.peak = max(self.peak, self.current)
        self.trace.append((str(func).removeprefix("aten."), str(getattr(leaf, "shape", "")), self.current))
        return result

    def safe_softmax(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """The steps of aten/src/ATen/native/SoftMax.cpp ``_safe_softmax``, which a mode sees as one."""
        made, masked = torch.softmax(x, dim), x.eq(0)
        result = torch.where(masked.all(dim, keepdim=True), 0.0, made)
        for tensor in (made, masked, result):
            self.note(tensor)
        self.peak = max(self.peak, self.current)
        return result

    @contextlib.contextmanager
    def sdpa_seen(self) -> Iterator[None]:
        """Marks calls of sdpa: its composite form adds masks in place, except for tensor subclasses and under modes."""
        real = torch.nn.functional.scaled_dot_product_attention

        def marked(*args: Any, **kwargs: Any) -> torch.Tensor:
            self.in_sdpa = True
            try:
                return real(*args, **kwargs)
            finally:
                self.in_sdpa = False

        with unittest.mock.patch.object(torch.nn.functional, "scaled_dot_product_attention", marked):
            yield

    @staticmethod
    def sums_in_place(args: Any) -> bool:
        first, second = args[:2]
        if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
            return False
        if first.shape != second.shape or torch.is_grad_enabled():
            return False
        if called_from() != "_engine_run_backward":  # an addition of somebody's Python
            return False
        if "AccumulateGrad" in type(torch._C._current_autograd_node()).__name__:
            return False
        if not torch._prims_common.is_non_overlapping_and_dense_or_false(first):
            return False
        storage = first.untyped_storage()  # one reference is this name's, three of the tensor's are dispatch's
        return bool(first._use_count() <= 4 and torch._C._storage_Use_Count(storage._cdata) <= 2)


WRAPPERS = ("eval_frame.py", "_compile.py", "_python_dispatch.py", "real.py")


def called_from() -> str:
    """The function whose call was dispatched, behind the wrappers that torch puts around a mode."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.endswith(WRAPPERS):
        frame = frame.f_back
    return frame.f_code.co_name


@dataclass
class Truth:
    """One real layer: what it keeps, and what is alive inside it, in bytes. Weights and shared inputs are left out."""

    saved: list[Kept] = field(default_factory=list)
    shared: list[Kept] = field(default_factory=list)
    forward: int = 0  # largest moment, the input counted
    after: int = 0
    backward: int = 0  # largest moment, gradients of weights counted
    weights: int = 0  # gradients of weights at the end
    trace: list[tuple[str, str, int]] = field(default_factory=list)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Captured(Exception):
    """Raised by a hook when it has what it wants."""


def arguments_of(model: torch.nn.Module, layer: torch.nn.Module, run: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What ``layer`` is called with when ``run()`` runs."""
    caught: list[Any] = []

    def hook(_: Any, args: Any, kwargs: Any) -> None:
        caught.extend((args, kwargs))
        raise Captured

    handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        run()
    except Captured:
        pass
    finally:
        handle.remove()
    return caught[0], caught[1]


class Sink(torch.autograd.Function):
    """Where the gradient of a block's input ends: the engine holds it as it would on the way to the block before."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(like.shape, dtype=like.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None]:
        return None, None


class Source(torch.autograd.Function):
    """Where the gradient of a block's output comes from: made inside backward, so that nobody else holds it."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
        ctx.like = (output.shape, output.dtype)
        return output.new_empty(())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        shape, dtype = ctx.like
        return torch.empty(shape, dtype=dtype)


def measure(call: Any, inputs: dict[str, torch.Tensor], outside: Any, weights: Any) -> Truth:
    """Run ``call(**inputs)`` forwards and backwards. ``outside`` is shared with other layers and counted apart."""
    truth, weights = Truth(), list(weights)
    owned = {t.untyped_storage()._cdata for t in weights}
    apart = {t.untyped_storage()._cdata for t in tree_leaves(outside) if isinstance(t, torch.Tensor)}
    seen: dict[int, Any] = {}
    packed: list[tuple[int, Any, Kept]] = []

    def pack(tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in owned and (key not in seen or seen[key]() is None):
            seen[key] = weakref.ref(storage)
            packed.append((key, seen[key], (name_of(tensor.dtype), storage.nbytes())))
        return tensor

    with Live((outside, weights)) as live:
        leaf = torch.empty((), requires_grad=True)
        live.forget(leaf)
        made = {name: Sink.apply(leaf, tensor) for name, tensor in inputs.items()}
        live.restart()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), live.sdpa_seen():
            output = call(made)
        truth.forward = live.peak
        output = output[0] if isinstance(output, tuple) else output
        for key, storage, kept in packed:
            if storage() is not None:  # not so when the graph that kept it was dropped inside
                (truth.shared if key in apart else truth.saved).append(kept)
        live.forget(output)
        truth.after = live.current
        end = Source.apply(output)
        del output
        live.forget(end)
        live.restart()
        end.backward()
        truth.backward, truth.trace = live.peak, live.trace
        truth.weights = live.current
    return truth
