"""A world of any size in one process: a fake process group, fake tensors, and what engines need to run on them.

Each patch stands beside its reason; all are undone on the way out. The pieces of torch used here are private
(``torch.testing._internal.distributed.fake_pg``, ``torch._subclasses``): ``torch`` is pinned in CI.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


@contextmanager
def fake_world(
    ranks: int, ranks_per_node: int, engine: str, rank: int = 0, free_bytes: int = 0
) -> Iterator[FakeTensorMode]:
    """A process group of ``ranks`` whose collectives do nothing, and the mode in which tensors have no memory.

    ``free_bytes``: what DeepSpeed is told when it asks whether a flat copy of the parameters fits beside them.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with ExitStack() as stack:
        stack.enter_context(_environment(rank, ranks, ranks_per_node))
        if dist.is_initialized():
            raise RuntimeError("a process group exists already; a simulation needs a process of its own")
        dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
        stack.callback(dist.destroy_process_group)
        stack.enter_context(patch.object(_masking(), "find_packed_sequence_indices", lambda *_, **__: None))
        stack.enter_context(patch.object(torch.nn.Module, "_apply", _apply(torch.nn.Module._apply)))
        table = fake_impls.op_implementations_dict
        stack.enter_context(_replaced(table, torch.ops.aten._local_scalar_dense.default, _scalar))
        stack.enter_context(_replaced(table, torch.ops.aten._grouped_mm.default, _grouped_mm))
        if engine == "fsdp1":
            stack.enter_context(patch.object(FakeTensor, "data_ptr", _address))
            stack.enter_context(patch.object(_flat_parameters(), "_data_ptr_allocated", _is_allocated))
        if engine == "deepspeed":
            stack.enter_context(_deepspeed(free_bytes))
        yield FakeTensorMode(allow_non_fake_inputs=True)


def _masking() -> Any:
    """transformers' masks: it looks at the values of position ids for packed sequences, which fake tensors do not have,
    and would make a mask in four dimensions that a plain run does not make."""
    import transformers.masking_utils

    return transformers.masking_utils


@contextmanager
def _environment(rank: int, ranks: int, ranks_per_node: int) -> Iterator[None]:
    wanted = {
        "RANK": str(rank), "LOCAL_RANK": str(rank % ranks_per_node),
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks_per_node),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999", "DS_ACCELERATOR": "cpu",
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextmanager
def _replaced(table: dict[Any, Any], key: Any, value: Any) -> Iterator[None]:
    original = table.get(key)
    table[key] = value
    try:
        yield
    finally:
        if original is None:
            del table[key]
        else:
            table[key] = original


def _apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """``module.to(...)`` swaps the tensors of parameters, which fake tensors refuse; ``.data`` does the same."""

    def apply(module: torch.nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
        if any(p is not None and not isinstance(p, FakeTensor) for p in module._parameters.values()):
            return original(module, fn, recurse)
        if recurse:
            for child in module.children():
                child._apply(fn)
        for parameter in [p for p in module._parameters.values() if p is not None]:
            with torch.no_grad():
                made = fn(parameter)
            if made is not parameter:
                parameter.data = made
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fn(buffer)
        return module

    return apply


def _scalar(mode: Any, func: Any, tensor: Any) -> Any:
    """The value of a tensor that has none: not overflown, no token too many, a norm of one."""
    if tensor.constant is not None:
        with torch.utils._mode_utils.no_dispatch():
            return func(tensor.constant)
    if tensor.dtype == torch.bool:
        return False
    return 1.0 if tensor.dtype.is_floating_point else 0


def _address(tensor: FakeTensor) -> int:
    """FSDP1 tells by the address whether a flat parameter is its shard (``_catch_all_reshard``): all would be at 0."""
    storage: int = tensor.untyped_storage()._cdata
    return storage + tensor.storage_offset() * tensor.element_size()


def _flat_parameters() -> Any:
    import torch.distributed.fsdp._flat_param

    return torch.distributed.fsdp._flat_param


def _is_allocated(tensor: FakeTensor) -> bool:
    """Of what SHARD_GRAD_OP keeps gathered: the address of a fake storage is 0 whatever its size."""
    return tensor.untyped_storage().nbytes() > 0


def _grouped_mm(mode: Any, func: Any, rows: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
    """The shape of a grouped product in any dtype: torch's own rule asks for bf16, its kernel on a CPU does not."""
    if rows.dtype == torch.bfloat16:
        return NotImplemented
    with mode:
        like = [t.new_empty_strided(t.shape, t.stride(), dtype=torch.bfloat16) for t in (rows, weight)]
        made = func(*like, *args, **kwargs)
        return made.new_empty_strided(made.shape, made.stride(), dtype=rows.dtype)


@contextmanager
def _deepspeed(free_bytes: int) -> Iterator[None]:
    """DeepSpeed's communication over the group that exists; checks that compare ranks have nothing to compare.

    Stage 3 puts its own ``linear`` in place of torch's for good; here it goes back.
    """
    from validate.cells.deepspeed_engine import WAITING, on_cpu

    on_cpu()  # before communication starts, which would compile an operator
    import deepspeed
    import deepspeed.comm.comm as comm
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.zero import partitioned_param_coordinator, utils
    from deepspeed.utils import groups

    before = {name: value for name, value in vars(groups).items() if name.startswith("_") and name.isupper()}
    deepspeed.init_distributed(dist_backend="fake")
    agree = lambda ints: None  # noqa: E731
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.nn.functional, "linear", torch.nn.functional.linear))
        for module in (partitioned_param_coordinator, utils):
            stack.enter_context(patch.object(module, "assert_ints_same_as_other_ranks", agree))
        stack.enter_context(patch.object(get_accelerator(), "available_memory", lambda *_: free_bytes))
        for name in WAITING:  # for gloo's thread, which is not here
            stack.enter_context(patch.object(deepspeed.comm, name, getattr(deepspeed.comm, name).waits))
        stack.callback(vars(groups).update, before)
        stack.callback(setattr, comm, "cdb", None)
        yield
