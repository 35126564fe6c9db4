# ruff: noqa: TID253
# mypy: ignore-errors
"""FSDP2: fully_shard on each unit and on the root."""

import contextlib

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from selector.configs.templates.fsdp2_prefetch import prefetch
from selector.configs.templates.model import blocks
from selector.configs.templates.settings import (
    COMPUTE_DTYPE,
    EMBEDDING,
    GRADIENT_CLIPPING,
    PIN_MEMORY,
    REDUCE_DTYPE,
    RESHARD_AFTER_FORWARD,
    RESHARD_ROOT,
    RESHARD_TAIL,
    SHARD,
    SYNC_EACH_BATCH,
    TAIL,
)


def wrap(model, device):
    """Shard unit by unit: a unit is whole on the device only while it is cut, and while it is used."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh(device.type, (ranks,))  # unless: hybrid
    mesh = init_device_mesh(device.type, (ranks // SHARD, SHARD), mesh_dim_names=("replicate", "shard"))  # when: hybrid
    asked = {
        "mesh": mesh,
        "reshard_after_forward": RESHARD_AFTER_FORWARD,
        "mp_policy": MixedPrecisionPolicy(getattr(torch, COMPUTE_DTYPE), getattr(torch, REDUCE_DTYPE)),
        "offload_policy": CPUOffloadPolicy(pin_memory=PIN_MEMORY and device.type == "cuda"),  # when: host_tensors
    }
    units = blocks(model)  # unless: unwrapped
    units = []  # when: unwrapped
    units = [model.get_submodule(EMBEDDING), *units]  # when: embedding_unit
    for unit in units:
        fully_shard(unit, **asked)
    tail = [model.get_submodule(name) for name in TAIL]  # when: head_unit
    fully_shard(tail, **{**asked, "reshard_after_forward": RESHARD_TAIL})  # when: head_unit
    fully_shard(model, **{**asked, "reshard_after_forward": RESHARD_ROOT})
    prefetch(model, units)  # when: prefetching
    return model


def micro_step(model, last):
    """Gradients are reduced in the last micro-step only, unless SYNC_EACH_BATCH."""
    model.set_requires_gradient_sync(last or SYNC_EACH_BATCH)
    return contextlib.nullcontext()


def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_CLIPPING)


def inner(model):
    return model
