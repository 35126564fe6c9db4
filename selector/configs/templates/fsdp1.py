# ruff: noqa: TID253
# mypy: ignore-errors
"""FSDP1: FullyShardedDataParallel with flat parameters, a unit a block."""

import contextlib

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import CustomPolicy

from selector.configs.templates.model import blocks
from selector.configs.templates.settings import (
    BACKWARD_PREFETCH,
    COMPUTE_DTYPE,
    EMBEDDING,
    FORWARD_PREFETCH,
    GRADIENT_CLIPPING,
    LIMIT_ALL_GATHERS,
    REDUCE_DTYPE,
    SHARD,
    SHARDING_STRATEGY,
    SYNC_EACH_BATCH,
    USE_ORIG_PARAMS,
)


def wrap(model, device):
    ranks = dist.get_world_size()  # when: hybrid
    mesh = init_device_mesh(device.type, (ranks // SHARD, SHARD), mesh_dim_names=("replicate", "shard"))  # when: hybrid
    units = blocks(model)  # unless: unwrapped
    units = []  # when: unwrapped
    units.append(model.get_submodule(EMBEDDING))  # when: embedding_unit
    units.append(model.get_output_embeddings())  # when: head_unit
    units += trained_leaves(model)  # when: adapters
    for module in model.modules():  # when: adapters
        module.cast_input_dtype_enabled = False  # when: adapters
    chosen = {id(unit) for unit in units}
    return FullyShardedDataParallel(
        model,
        sharding_strategy=ShardingStrategy[SHARDING_STRATEGY],
        auto_wrap_policy=CustomPolicy(lambda module: id(module) in chosen),
        mixed_precision=MixedPrecision(getattr(torch, COMPUTE_DTYPE), getattr(torch, REDUCE_DTYPE)),
        cpu_offload=CPUOffload(offload_params=True),  # when: host_tensors
        backward_prefetch=BackwardPrefetch[BACKWARD_PREFETCH] if BACKWARD_PREFETCH else None,
        forward_prefetch=bool(FORWARD_PREFETCH),
        limit_all_gathers=LIMIT_ALL_GATHERS,
        use_orig_params=USE_ORIG_PARAMS,
        device_id=device,
        device_mesh=mesh,  # when: hybrid
    )


def trained_leaves(model):
    """Adapters are units of their own: a flat parameter has one dtype and one requires_grad.

    The units compute in 16 bit whatever the dtype of their shards, so peft must not cast their inputs to that.
    """
    leaves = (module for module in model.modules() if not list(module.children()))
    return [leaf for leaf in leaves if any(p.requires_grad for p in leaf.parameters())]


def micro_step(model, last):
    """Gradients are reduced in the last micro-step only, unless SYNC_EACH_BATCH."""
    return contextlib.nullcontext() if last or SYNC_EACH_BATCH else model.no_sync()


def clip(model):
    model.clip_grad_norm_(GRADIENT_CLIPPING)


def inner(model):
    return model.module
