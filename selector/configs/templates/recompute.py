# ruff: noqa: TID253
# mypy: ignore-errors
"""Activation checkpointing: what is kept of a block, and what is computed again in backward."""

import functools

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from selector.configs.templates.model import blocks


def offloaded(module):
    """Recomputed in backward from an input that waits in host RAM."""
    return offload_wrapper(checkpoint_wrapper(module))


def keep_attention(context, operation, *args, **kwargs):
    """Attention's output is kept, everything else of a block is recomputed."""
    kept = operation in (
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    )
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_activations(model):
    wrapper = checkpoint_wrapper  # unless: selective
    wrapper = offloaded  # when: offload
    contexts = functools.partial(create_selective_checkpoint_contexts, keep_attention)  # when: selective
    wrapper = functools.partial(checkpoint_wrapper, context_fn=contexts)  # when: selective
    chosen = {id(m) for m in blocks(model)}  # unless: every_2
    chosen = {id(m) for m in blocks(model)[::2]}  # when: every_2
    apply_activation_checkpointing(model, checkpoint_wrapper_fn=wrapper, check_fn=lambda m: id(m) in chosen)
