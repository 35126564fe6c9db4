"""Every storage of a simulated run, and what was alive at the largest moment of each instant.

A ``Ledger`` is a census that also knows the instants. Two things are put right that a dispatch mode makes different
from a plain run, both decided as torch decides them:

* autograd's engine adds gradients in place when it holds the last reference (torch/csrc/autograd/input_buffer.cpp,
  ``can_accumulate_inplace``), but never while a mode is on;
* index and scatter gradients are written in place into fresh zeros, except for subclasses (FunctionsManual.cpp).

DTensor learns the shapes of its results from fake tensors of global shape, once an operation; those are not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._pytree import tree_leaves

from validate.census import Block, Census
from validate.half import PRODUCTS, product, replaces
from validate.simulate.remembered import Remembered

SCATTERS = {
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
    torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
}
REDUCE = "reduce"
_NOTHING = Block(0, "")

# References while a mode looks at an operand that only the engine holds: dispatch has three of the tensor and one is
# this module's name; a storage has one of the tensor and one of Python's wrapper.
_TENSOR_REFERENCES = 4
_STORAGE_REFERENCES = 2


class Ledger(Census):
    """A census of fake tensors, cut into phases that follow one another.

    ``fakes_only``: real tensors in a simulation are the engines' book-keeping (device meshes), never on a GPU.
    """

    def __init__(self, fakes_only: bool = True) -> None:
        super().__init__(count_fake=True)
        self._fakes_only = fakes_only
        self._looks_away = False
        self._remembered = Remembered()
        self.starts: list[tuple[str, int]] = []
        self._on_host: set[Block] = set()
        self._host_site = ""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here; the guard against it would cost as much as the ledger

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(t.__name__ == "DTensor" for t in types):
            return NotImplemented  # let it become an operation on its local tensor first
        if func is torch.ops.aten.add.Tensor and _sums_in_place(args):
            result = args[0].add_(args[1])
        else:
            if func in SCATTERS and torch._C._current_graph_task_id() != -1:
                func = SCATTERS[func]
            if func in PRODUCTS and args[-1].dtype != args[-2].dtype:  # fake ones do not ask
                raise RuntimeError(f"a product of {args[-2].dtype} and {args[-1].dtype}: torch has none of two dtypes")
            if replaces(func, args, kwargs):
                result = product(func, args)
            else:
                result = self._remembered.call(func, args, kwargs or {})
        if type(result) is FakeTensor:
            self._note(result)
            return result
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf)
        return result

    def _note(self, tensor: torch.Tensor) -> Block | None:
        is_fake = isinstance(getattr(tensor, "_local_tensor", tensor), FakeTensor)
        if self._looks_away or (self._fakes_only and not is_fake):
            return None
        return super()._note(tensor)

    def begin(self, phase: str) -> None:
        """From here on events belong to this phase."""
        self.starts.append((phase, len(self._events)))
        self._events.append((_NOTHING, 0, self._region))

    def place_on_host(self, tensors: Iterable[torch.Tensor | None]) -> None:
        """These storages lie in host RAM, whatever the device of a simulated tensor says."""
        self._on_host.update(block for t in tensors if t is not None and (block := self._note(t)) is not None)

    def place_site_on_host(self, site: str) -> None:
        """What is made at sites with this piece in their names lies in host RAM, from its first moment on."""
        self._host_site = site

    def is_on_host(self, block: Block) -> bool:
        return block in self._on_host or bool(self._host_site and self._host_site in block.site)

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        with super().region(name):
            self._events.append((_NOTHING, 0, name))  # a moment of its own, even when nothing is allocated in it
            yield
            self._events.append((_NOTHING, 0, name))

    @property
    def events(self) -> list[tuple[Block, int, str]]:  # type: ignore[override]
        return self._events

    def window(self, phase: str) -> tuple[int, int]:
        """First and last event of the last time that a phase was entered."""
        at = max(i for i, (name, _) in enumerate(self.starts) if name == phase)
        last = self.starts[at + 1][1] if at + 1 < len(self.starts) else len(self._events)
        return self.starts[at][1], last

    def __enter__(self) -> Ledger:
        super().__enter__()
        self._ask_shapes = ShardingPropagator._propagate_tensor_meta_non_cached
        ledger, original = self, self._ask_shapes

        def unseen(*args: Any, **kwargs: Any) -> Any:
            before, ledger._looks_away = ledger._looks_away, True
            try:
                return original(*args, **kwargs)
            finally:
                ledger._looks_away = before

        ShardingPropagator._propagate_tensor_meta_non_cached = unseen  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: Any) -> None:
        ShardingPropagator._propagate_tensor_meta_non_cached = self._ask_shapes  # type: ignore[method-assign]
        super().__exit__(*error)


def _sums_in_place(args: Any) -> bool:
    """Whether this addition is the engine's and would be in place in a plain run."""
    first, second = args[:2]
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled() or not isinstance(second, torch.Tensor):
        return False
    if "AccumulateGrad" in type(torch._C._current_autograd_node()).__name__ or first.shape != second.shape:
        return False
    if not torch._prims_common.is_non_overlapping_and_dense_or_false(first):
        return False
    storage = first.untyped_storage()
    return bool(
        first._use_count() <= _TENSOR_REFERENCES and torch._C._storage_Use_Count(storage._cdata) <= _STORAGE_REFERENCES
    )
