# mypy: ignore-errors
"""Checkpoints of accelerate: save_state writes what the engine holds, rank by rank."""

import pathlib


def resume(accelerator, folder):
    """Load the newest checkpoint and return its step; 0 where there is none."""
    found = sorted(pathlib.Path(folder).glob("step-*"))
    if not found:
        return 0
    accelerator.load_state(str(found[-1]))
    return int(found[-1].name.partition("-")[2])


def export(accelerator, model, folder):
    """Gather the whole model in rank 0's host RAM and write it as from_pretrained reads it."""
    weights = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        weights = {name.replace("_checkpoint_wrapped_module.", ""): tensor for name, tensor in weights.items()}
        accelerator.unwrap_model(model).save_pretrained(f"{folder}/model", state_dict=weights)
