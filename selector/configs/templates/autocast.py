# ruff: noqa: TID253
# mypy: ignore-errors
"""Compute in 16 bit over fp32 parameters."""

import torch

from selector.configs.templates.settings import COMPUTE_DTYPE


def autocast(device):
    return torch.autocast(device.type, getattr(torch, COMPUTE_DTYPE))
