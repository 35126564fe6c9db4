"""What the real modules keep and hold, under fake tensors: the truth that ledgers are compared with."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Bytes of all storages alive, and their largest sum."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, Any] = {}
        self.current = self.peak = 0
        self.trace: list[tuple[str, int]] = []

    def note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.sizes:
            return
        size = storage.nbytes()
        self.current += size

        def gone(_: Any) -> None:
            del self.sizes[key]
            self.current -= size

        self.sizes[key] = weakref.ref(storage, gone)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.note(leaf)
        self.peak = max(self.peak, self.current)
        self.trace.append((str(func), self.current))
        return result


def saved_by_block(config: Any, batch: int, seq: int, dtype: torch.dtype = torch.bfloat16) -> list[tuple[str, tuple, str, int]]:
    """(module, shape, dtype, bytes) of each storage that the second block keeps and no earlier one does."""
    import transformers
    import transformers.masking_utils as masking

    masking.find_packed_sequence_indices = lambda position_ids: None  # fake tensors cannot prove that none is packed
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cpu"):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
        owned = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
        current, keep = [""], []
        seen: dict[int, tuple[str, tuple, str, int]] = {}
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda m, a, name=name: current.append(name))
            module.register_forward_hook(lambda m, a, o: current.pop() and None)

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            key = tensor.untyped_storage()._cdata
            if key not in owned and key not in seen:
                dtype_name = str(tensor.dtype).removeprefix("torch.")
                seen[key] = (current[-1], tuple(tensor.shape), dtype_name, tensor.untyped_storage().nbytes())
                keep.append(tensor)
            return tensor

        ids = torch.zeros(batch, seq, dtype=torch.long)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(input_ids=ids, labels=ids)
    return list(seen.values())
