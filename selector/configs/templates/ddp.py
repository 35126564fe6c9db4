# ruff: noqa: TID253
# mypy: ignore-errors
"""DistributedDataParallel: every rank holds the whole model; gradients are averaged bucket by bucket."""

import contextlib

import torch
from torch.nn.parallel import DistributedDataParallel

from selector.configs.templates.settings import (
    BUCKET_CAP_MB,
    FIND_UNUSED_PARAMETERS,
    GRADIENT_AS_BUCKET_VIEW,
    GRADIENT_CLIPPING,
    STATIC_GRAPH,
    SYNC_EACH_BATCH,
)


def wrap(model, device):
    return DistributedDataParallel(
        model.to(device),
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=GRADIENT_AS_BUCKET_VIEW,
        bucket_cap_mb=BUCKET_CAP_MB,
        static_graph=STATIC_GRAPH,
        find_unused_parameters=FIND_UNUSED_PARAMETERS,
    )


def micro_step(model, last):
    """Gradients are reduced in the last micro-step only, unless SYNC_EACH_BATCH."""
    return contextlib.nullcontext() if last or SYNC_EACH_BATCH else model.no_sync()


def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_CLIPPING)


def inner(model):
    return model.module
