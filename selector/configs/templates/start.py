# ruff: noqa: TID253
# mypy: ignore-errors
"""The process group, and this process's device."""

import os

import torch
import torch.distributed as dist


def start():
    """GPUs where there are any; the CPU over gloo otherwise, for a rehearsal."""
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")  # unless: alone
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("cpu:gloo,cuda:nccl")  # when: host_tensors
    dist.init_process_group("nccl", device_id=device)  # when: device_tensors
    return device
