"""What an operation on fake tensors returned before, without asking torch again.

Torch remembers the results of fake operations too (``FakeTensorMode.cache``), but to look one up it describes every
argument in seventeen fields through two modes: most of the time of a simulation. Here an operation is known by less,
which is enough for strided tensors of one device; torch decides what may be remembered, and what is not goes to torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_CPU = torch.device("cpu")
_VALUES = frozenset({
    int, bool, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size,
})  # fmt: skip
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_DEVICE = torch.ops.prim.device.default
_NOTHING = object()
# Views whose arguments hardly ever come again (offsets into flat buffers): torch's own kernel, without the description.
_VIEWS = frozenset({
    torch.ops.aten.as_strided.default, torch.ops.aten.slice.Tensor, torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
})  # fmt: skip


class _Unknown(Exception):
    """An argument that is not described here."""


class Remembered:
    """Calls operations under one fake mode. ``call`` answers what ``func(*args, **kwargs)`` would."""

    def __init__(self) -> None:
        self._mode: FakeTensorMode | None = None
        self._attributes: dict[str, Any] = {}
        self._guard: Callable[[torch.Tensor], None] = lambda made: None
        self._known: dict[tuple[Any, ...], Any] = {}

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        mode = torch._C._get_dispatch_mode(_FAKE)
        if mode is None:
            return func(*args, **kwargs)
        if mode is not self._mode:
            if self._mode is not None:
                return func(*args, **kwargs)  # torch asks a mode of its own for the shapes of a DTensor
            self._mode = mode
            self._attributes = dict(vars(torch.empty(0)))
            self._guard = (
                torch._C._set_warn_deprecated_on_mutable_data_ptr
                if mode._allow_unsafe_data_ptr_access
                else torch._C._set_throw_on_mutable_data_ptr
            )
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return args[0]._fake_device
        if func in _VIEWS and self._is_plain(args[0]):
            with fake_tensor.in_kernel_invocation_manager(mode):
                return self._fake(func(*args, **kwargs))
        key: list[Any] = [func, torch.get_default_dtype()]
        try:
            self._describe(key, args)
            if kwargs:
                key.extend(kwargs)
                self._describe(key, kwargs.values())
        except _Unknown:
            return func(*args, **kwargs)
        found = self._known.get(name := tuple(key), _NOTHING)
        if found is None:
            return func(*args, **kwargs)
        if found is _NOTHING:
            result = func(*args, **kwargs)
            self._known[name] = self._recipe(mode, func, args, kwargs)
            return result
        infos, is_tuple = found
        if is_tuple:
            return tuple([self._made(info, args) for info in infos])
        return self._made(infos[0], args)

    def _describe(self, key: list[Any], values: Any) -> None:
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if not self._is_plain(value):
                    raise _Unknown
                key += (
                    value.dtype, value.shape, value.stride(), value.storage_offset(), value.requires_grad,
                    value.untyped_storage().nbytes(),
                )  # fmt: skip
            elif kind in _VALUES:
                key += (kind, value)
            elif kind is list or kind is tuple:
                key += (kind, len(value))
                self._describe(key, value)
            else:
                raise _Unknown

    def _is_plain(self, value: Any) -> bool:
        return (
            type(value) is FakeTensor
            and value.fake_mode is self._mode
            and value.constant is None
            and value._fake_device == _CPU
        )

    def _recipe(self, mode: FakeTensorMode, func: Any, args: Any, kwargs: Any) -> Any:
        """How to make the results again, if torch itself would: from the entry that it has just written."""
        state = fake_tensor._CacheKeyState(mode.shape_env)
        try:
            entry = FakeTensorMode.cache.get(mode._cache_key(state, func, args, kwargs))
        except fake_tensor._BypassDispatchCache:
            return None
        if not isinstance(entry, fake_tensor._DispatchCacheValidEntry):
            return None
        for info in entry.output_infos:
            made = info.metadata
            if made is not None and (
                made.device != _CPU or made.layout != torch.strided or made.dtype.is_complex or made.requires_grad
                or made.is_inference
            ):  # fmt: skip
                return None
        return entry.output_infos, entry.is_output_tuple

    def _made(self, info: Any, args: Any) -> Any:
        if info.inplace_idx is not None:
            return args[info.inplace_idx]
        wanted = info.metadata
        if wanted is None:
            return info.constant_value
        with torch._C._DisableTorchDispatch():
            made = torch.empty_strided(wanted.shape, wanted.stride, dtype=wanted.dtype, device="meta")
            if info.view_idx is not None:
                made.set_(args[info.view_idx].untyped_storage(), wanted.storage_offset, wanted.shape, wanted.stride)
        return self._fake(made)

    def _fake(self, made: torch.Tensor) -> FakeTensor:
        """A fake tensor over a meta tensor, as torch makes one (``FakeTensor.__new__``)."""
        with torch._C._DisableTorchDispatch():
            result = torch.Tensor._make_subclass(
                FakeTensor, made, False, dispatch_device=True, device_for_backend_keys=_CPU
            )
        self._guard(result)
        result.__dict__.update(self._attributes)
        return result
