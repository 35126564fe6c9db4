# ruff: noqa: TID253
# mypy: ignore-errors
"""Batches of one rank, without end."""

import torch
import torch.distributed as dist

from selector.configs.templates.settings import GRAD_ACCUM, MICRO_BATCH, SEED


def loader(examples, device, done_steps=0):
    """Batches of this rank on its device, epoch after epoch; those of finished steps are skipped."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    sampler = torch.utils.data.DistributedSampler(examples, ranks, rank, shuffle=True, seed=SEED, drop_last=True)
    skip = done_steps * GRAD_ACCUM
    for epoch in range(10**9):
        sampler.set_epoch(epoch)
        for batch in torch.utils.data.DataLoader(examples, MICRO_BATCH, sampler=sampler, drop_last=True):
            if skip:
                skip -= 1
                continue
            yield {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
