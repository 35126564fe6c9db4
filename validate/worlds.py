"""The process group that a rank joins: NCCL or gloo with real peers, or a fake one of any size."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

BACKENDS = {"gpu": "nccl", "cpu": "gloo", "rehearse": "fake"}


@contextmanager
def joined(mode: str, with_deepspeed: bool, device: str, seconds: float) -> Iterator[None]:
    """Inside, this process is a rank of the group that ``RANK``, ``WORLD_SIZE`` and ``MASTER_*`` describe."""
    import torch.distributed as dist

    backend = BACKENDS[mode]
    asked: dict[str, Any] = {"timeout": timedelta(seconds=seconds)}
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        asked |= {"store": FakeStore(), "rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    elif backend == "nccl":
        import torch

        asked["device_id"] = torch.device("cuda", torch.cuda.current_device())
    with ExitStack() as stack:
        dist.init_process_group(backend, **asked)
        stack.callback(_leave)
        if with_deepspeed:
            stack.enter_context(_deepspeed(device, backend))
        yield


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def _deepspeed(device: str, backend: str) -> Iterator[None]:
    """DeepSpeed over the group that exists. On a CPU nothing is compiled: its shared-memory and Adam operators take
    minutes to build."""
    if device == "cpu":
        from validate.cells.deepspeed_engine import prepare

        prepare()
    import deepspeed
    import deepspeed.comm.comm as comm
    from deepspeed.utils import groups

    before = {name: value for name, value in vars(groups).items() if name.startswith("_") and name.isupper()}
    deepspeed.init_distributed(dist_backend=backend)
    try:
        yield
    finally:
        vars(groups).update(before)
        comm.cdb = None


def described(rank: int, ranks: int, local_rank: int, local_ranks: int, port: int, host: str) -> Mapping[str, str]:
    """The environment that torchrun would set for a rank."""
    return {
        "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_ranks), "MASTER_ADDR": host, "MASTER_PORT": str(port),
    }  # fmt: skip
