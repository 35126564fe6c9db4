# mypy: ignore-errors
"""FSDP1 with adapters: they are units of their own, for a flat parameter has one dtype."""

from peft.utils.other import fsdp_auto_wrap_policy


def wrap_trained_leaves(accelerator, model):
    accelerator.state.fsdp_plugin.auto_wrap_policy = fsdp_auto_wrap_policy(model)
