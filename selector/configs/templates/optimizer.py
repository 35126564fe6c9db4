# ruff: noqa: TID253
# mypy: ignore-errors
"""The optimizer; a script gets the call that was settled for it (selector/configs/optimizers.py)."""

import torch

from selector.configs.templates.settings import LEARNING_RATE


def make_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE)
