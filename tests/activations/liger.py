"""Liger's autograd functions on a CPU: its kernels need triton and a GPU, what they allocate and keep does not.

``triton`` is replaced, while Liger is imported, by a module whose kernels do nothing; the functions around them, which
make every tensor, are Liger's own.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

MODULES = ("triton", "triton.language", "triton.language.math", "triton.language.extra",
           "triton.language.extra.libdevice", "triton.language.extra.cuda", "triton.language.extra.cuda.libdevice",
           "triton.runtime", "triton.runtime.driver")  # fmt: skip


class Kernel:
    """``kernel[grid](...)``: nothing."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self


class Constant:
    """``tl.constexpr``."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Anything(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Kernel()


def _stand_ins() -> dict[str, types.ModuleType]:
    made: dict[str, types.ModuleType] = {}
    for name in MODULES:
        made[name] = module = Anything(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
        module.__dict__["__version__"] = "3.0.0"
        owner, _, leaf = name.rpartition(".")
        if owner:
            setattr(made[owner], leaf, module)
    triton: Any = made["triton"]
    triton.jit = lambda f=None, **_: Kernel() if f is not None else (lambda g: Kernel())
    triton.autotune = triton.heuristics = lambda *_, **__: lambda f: f
    triton.language.constexpr = Constant
    triton.cdiv = lambda a, b: -(-a // b)
    triton.next_power_of_2 = lambda n: 1 << (n - 1).bit_length()
    return made


def liger(module: str) -> Any:
    """A module of Liger's, imported with kernels that do nothing."""
    if f"liger_kernel.{module}" not in sys.modules:
        for other in ("bitsandbytes", "peft"):  # which would take the stand-in for triton
            with contextlib.suppress(ImportError):
                importlib.import_module(other)
        made = _stand_ins()
        sys.modules.update(made)
        try:
            importlib.import_module(f"liger_kernel.{module}")
        finally:
            for name in made:
                del sys.modules[name]
    return sys.modules[f"liger_kernel.{module}"]


@contextlib.contextmanager
def patched(model_type: str, kind: str = "") -> Iterator[Any]:
    """Liger's patch of a family, undone at the end: yields the function that patches a model."""
    modeling = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    before = dict(vars(modeling))
    classes = {c: dict(vars(c)) for c in before.values() if isinstance(c, type) and c.__module__ == modeling.__name__}
    try:
        yield getattr(liger("transformers.monkey_patch"), f"apply_liger_kernel_to_{kind or model_type}")
    finally:
        vars(modeling).update(before)
        for one, names in classes.items():
            _restore(one, names)


def _restore(one: type, before: Mapping[str, Any]) -> None:
    """Methods that a patch put into a class, such as ``forward`` of the whole model."""
    for name, value in dict(vars(one)).items():
        if name not in before:
            delattr(one, name)
        elif value is not before[name]:
            setattr(one, name, before[name])
