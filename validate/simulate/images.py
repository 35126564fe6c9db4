"""A micro-batch with images for networks that take them at any size (Qwen2-VL and its successors).

Their shapes follow from values: how many patches an image has, where the text has room for them. So these few integers
are known: torch keeps the value of a fake tensor that was made of a constant, here for more than one number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isqrt
from typing import Any

import torch
from torch._subclasses import fake_tensor

from estimators.activations.blocks.qwen_vl import DEFAULT_PATCHES
from estimators.run import Run

KNOWN_NUMBERS = 2**20  # the most that a constant may have: token ids of a micro-batch, offsets of its images


def has_grid(run: Run) -> bool:
    """Whether the network reads the sizes of its images from ``image_grid_thw``."""
    return "spatial_merge_size" in _vision(run) and "temporal_patch_size" in _vision(run)


def batch_with_images(run: Run) -> dict[str, torch.Tensor]:
    """Square images one after the other, each with as many places in the text as it has merged patches.

    Raises ``NotImplementedError`` where they leave no room for text.
    """
    vision, work = _vision(run), run.workload
    side = isqrt(work.image_patches or DEFAULT_PATCHES)
    merge = int(vision["spatial_merge_size"])
    side -= side % merge
    each = (side // merge) ** 2
    if work.images * (each + 1) > work.seq_len:
        raise NotImplementedError(
            f"{work.images} images of {side * side} patches fill {work.seq_len} tokens; ask for more tokens"
        )
    places = [1 if at % (each + 1) < each and at // (each + 1) < work.images else 0 for at in range(work.seq_len)]
    token = _image_token(run.model.config)
    row = torch.tensor([[token if place else 0 for place in places]] * work.micro_batch)
    count = work.micro_batch * work.images
    channels = int(vision.get("in_channels", vision.get("in_chans", 3)))
    pixels = channels * int(vision["temporal_patch_size"]) * int(vision["patch_size"]) ** 2
    return {
        "input_ids": row,
        "labels": row.clone(),
        "mm_token_type_ids": torch.tensor([places] * work.micro_batch, dtype=torch.int),
        "pixel_values": torch.rand(count * side * side, pixels),
        "image_grid_thw": torch.tensor([[1, side, side]] * count),
        # of time, height and width; the class would make a tensor of a list of tensors, which have no numbers here
        "position_ids": torch.zeros(3, work.micro_batch, work.seq_len, dtype=torch.long),
    }


@contextmanager
def known_values() -> Iterator[None]:
    """Constants of more than one number keep their values too."""
    before = fake_tensor.CONSTANT_NUMEL_LIMIT
    fake_tensor.CONSTANT_NUMEL_LIMIT = KNOWN_NUMBERS
    try:
        yield
    finally:
        fake_tensor.CONSTANT_NUMEL_LIMIT = before


def _image_token(config: Mapping[str, Any]) -> int:
    """What stands in the text for a piece of an image; the class knows it where the config does not say."""
    import transformers

    own = transformers.CONFIG_MAPPING[str(config["model_type"])]
    return int(config.get("image_token_id") or own().image_token_id)


def _vision(run: Run) -> Mapping[str, Any]:
    found = run.model.config.get("vision_config")
    return found if isinstance(found, Mapping) else {}
