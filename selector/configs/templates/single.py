# ruff: noqa: TID253
# mypy: ignore-errors
"""One GPU: no engine."""

import contextlib

import torch

from selector.configs.templates.settings import GRADIENT_CLIPPING


def wrap(model, device):
    return model.to(device)


def micro_step(model, last):
    return contextlib.nullcontext()


def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_CLIPPING)


def inner(model):
    return model
