# ruff: noqa: TID253
# mypy: ignore-errors
"""Checkpoints of every torch engine: each rank writes its own part; the last one becomes an ordinary model."""

import pathlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from selector.configs.templates.fsdp2 import inner


def save(model, optimizer, step, folder):
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": states}, checkpoint_id=f"{folder}/step-{step:06d}")


def resume(model, optimizer, folder):
    """Load the newest complete checkpoint and return its step; 0 where there is none."""
    found = sorted(path.parent for path in pathlib.Path(folder).glob("step-*/.metadata"))
    if not found:
        return 0
    weights, states = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": states}
    dcp.load(state, checkpoint_id=found[-1])
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(found[-1].name.partition("-")[2])


def export(model, folder):
    """Gather the whole model in rank 0's host RAM and write it as from_pretrained reads it."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=torch.cuda.is_available())
    whole = get_model_state_dict(model, options=options)
    if not dist.is_initialized() or dist.get_rank() == 0:
        whole = {name.replace("_checkpoint_wrapped_module.", ""): tensor for name, tensor in whole.items()}
        inner(model).save_pretrained(f"{folder}/model", state_dict=whole)
