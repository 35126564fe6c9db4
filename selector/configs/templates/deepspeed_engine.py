# ruff: noqa: TID253
# mypy: ignore-errors
"""DeepSpeed: the engine is configured by ds_config.json."""

import json

import deepspeed
import torch

from selector.configs.templates.deepspeed_rehearsal import rehearsal


def start():
    """The configuration; on a machine without a GPU the one for a rehearsal on the CPU."""
    with open("ds_config.json", encoding="utf-8") as file:
        config = json.load(file)
    if not torch.cuda.is_available():
        return rehearsal(config)
    deepspeed.init_distributed()
    return config


def export(engine, folder):
    """Gather 16-bit weights in rank 0's host RAM and write them as from_pretrained reads them."""
    weights = engine._zero3_consolidated_16bit_state_dict()  # when: stage3
    weights = engine.module.state_dict()  # unless: stage3
    if engine.global_rank == 0:
        weights = {name.replace("_checkpoint_wrapped_module.", ""): tensor for name, tensor in weights.items()}
        engine.module.save_pretrained(f"{folder}/model", state_dict=weights)
