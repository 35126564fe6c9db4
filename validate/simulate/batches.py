"""One micro-batch of nothing in particular, as a dataloader would give it: text, images, text with images, sound.

Where images stand in the text is a matter of values, and so is the size of what Qwen2-VL and its successors read from a
grid. In a simulation these few integers are known (``known_values``): torch keeps the value of a fake tensor that was
made of a constant, here for more than one number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from math import isqrt
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from estimators.activations.blocks.qwen_vl import DEFAULT_PATCHES
from estimators.model.spec import ModelSpec
from estimators.run import Run
from validate.depth import sections

IMAGE_CLASSES = 1000
KNOWN_NUMBERS = 2**20  # the most that a constant may have: token ids of a micro-batch, offsets of its images

Batch = dict[str, torch.Tensor]


def batch(run: Run) -> Batch:
    """Inputs of one forward. Raises ``NotImplementedError`` for a network whose inputs are not described here."""
    config, rows = run.model.config, run.workload.micro_batch
    if has_images(run):
        return _with_grid(run) if _has_grid(run) else _with_images(run)
    if "image_size" in config and "vocab_size" not in config:
        return {"pixel_values": _pixels(config, rows), "labels": torch.randint(0, IMAGE_CLASSES, (rows,))}
    ids = torch.randint(0, vocabulary(run.model) or 2, (rows, run.workload.seq_len))
    if "num_mel_bins" in config:
        frames = 2 * int(str(config.get("max_source_positions", 1500)))  # two strides of the convolutions in front
        return {"input_features": torch.rand(rows, int(str(config["num_mel_bins"])), frames), "labels": ids}
    return {"input_ids": ids, "labels": ids}


def has_images(run: Run) -> bool:
    """Whether images stand in its text."""
    return bool(_vision(run)) and vocabulary(run.model) > 0


def vocabulary(model: ModelSpec) -> int:
    """Rows of the head; 0 where there is none."""
    return next((int(str(s["vocab_size"])) for s in sections(model.config) if s.get("vocab_size")), 0)


def image_token(model: ModelSpec) -> int:
    """What stands in the text for a piece of an image; the class knows where the config does not say.

    The last one, where the network was made smaller than that (``validate.scaling``).
    """
    import transformers

    made = transformers.CONFIG_MAPPING[str(model.config["model_type"])]()
    known = [model.config.get("image_token_id"), getattr(made, "image_token_id", None)]
    found = next((int(str(token)) for token in known if token is not None), None)
    if found is None:
        raise NotImplementedError(f"{model.config['model_type']} does not say which token stands for an image")
    return min(found, vocabulary(model) - 1)


# -- images in text --------------------------------------------------------------------------------------------------


def _with_grid(run: Run) -> Batch:
    """Square images of any size, one after the other, and as many places in the text as they have merged patches."""
    vision, work = _vision(run), run.workload
    merge = int(vision["spatial_merge_size"])
    side = isqrt(work.image_patches or DEFAULT_PATCHES) // merge * merge
    places = _places(run, (side // merge) ** 2)
    count = work.micro_batch * work.images
    channels = int(vision.get("in_channels", vision.get("in_chans", 3)))
    patch_numbers = channels * int(vision.get("temporal_patch_size", 2)) * int(vision.get("patch_size", 14)) ** 2
    return {
        **_text(run, places),
        "mm_token_type_ids": torch.tensor([places] * work.micro_batch, dtype=torch.int),
        "pixel_values": torch.rand(count * side * side, patch_numbers),
        "image_grid_thw": torch.tensor([[1, side, side]] * count),
        # of time, height and width; the class would make a tensor of a list of tensors, which have no numbers here
        "position_ids": torch.zeros(3, work.micro_batch, work.seq_len, dtype=torch.long),
    }


def _with_images(run: Run) -> Batch:
    """Images of the config's size, each with its places in the text."""
    config, vision = run.model.config, _vision(run)
    each = config.get("mm_tokens_per_image")  # Gemma 3 pools; LLaVA takes every patch
    if each is None:
        each = (int(vision["image_size"]) // int(vision["patch_size"])) ** 2
    places = _places(run, int(str(each)))
    made = {**_text(run, places), "pixel_values": _pixels(vision, run.workload.micro_batch * run.workload.images)}
    if "mm_tokens_per_image" in config:
        made["token_type_ids"] = torch.tensor([places] * run.workload.micro_batch)
    return made


def _text(run: Run, places: list[int]) -> Batch:
    token = image_token(run.model)
    ids = torch.tensor([[token if place else 0 for place in places]] * run.workload.micro_batch)
    return {"input_ids": ids, "labels": ids.clone()}


def _places(run: Run, each: int) -> list[int]:
    """1 where a piece of an image stands in a sequence, 0 for a word; a word after each image."""
    images, tokens = run.workload.images, run.workload.seq_len
    if images * (each + 1) > tokens:
        raise NotImplementedError(
            f"{images} images of {each} tokens each fill a sequence of {tokens}; give at least {images * (each + 1)} tokens"
        )
    return [int(at // (each + 1) < images and at % (each + 1) < each) for at in range(tokens)]


def _pixels(vision: Mapping[str, Any], count: int) -> torch.Tensor:
    size = int(str(vision["image_size"]))
    return torch.rand(count, int(str(vision.get("num_channels", 3))), size, size)


def _vision(run: Run) -> Mapping[str, Any]:
    found = run.model.config.get("vision_config")
    return found if isinstance(found, Mapping) else {}


def _has_grid(run: Run) -> bool:
    return "spatial_merge_size" in _vision(run)


# -- values in a simulation ------------------------------------------------------------------------------------------


@contextmanager
def known_values(run: Run) -> Iterator[None]:
    """Inside, constants of more than one number keep their values too, and windows of images are cut by them."""
    with ExitStack() as stack:
        if has_images(run):
            stack.enter_context(patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", KNOWN_NUMBERS))
            kind = run.model.config["model_type"]
            module = import_module(f"transformers.models.{kind}.modeling_{kind}")
            if hasattr(module, "get_vision_window_index"):
                stack.enter_context(patch.object(module, "get_vision_window_index", _windows(module)))
        yield


def _windows(module: Any) -> Any:
    """Which patches share a window: computed on real numbers, for it looks for those that are not padding."""
    original = module.get_vision_window_index

    def windows(grid: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(grid, "constant", None) is None:
            return original(grid, *args, **kwargs)
        with unset_fake_temporarily():
            found = [t.tolist() for t in original(grid.constant, *args, **kwargs)]
        return torch.tensor(found[0]), torch.tensor(found[1], dtype=torch.int32)

    return windows
