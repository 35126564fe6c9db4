"""Towers and language blocks of vision-language models equal the real modules: every kept tensor, and both peaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.activations.other_cells import Other, differences
from tests.activations.other_towers import MULTIMODAL, QWEN

# Qwen's towers run their images one by one: several keep the same bytes in more tensors. Pixtral lays all images into
# one sequence. Both are compared for one image.
ONE_IMAGE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "mistral3")
FEEDS = {"idefics3": "patches", "qwen2_vl": "grid", "qwen2_5_vl": "grid", "qwen3_vl": "grid"}


def larger(config: dict[str, Any]) -> dict[str, Any]:
    """The same tower over larger images."""
    vision = dict(config["vision_config"])
    if "image_patches" in vision:
        vision["image_patches"] = 256
    else:
        vision["image_size"] = [128, 128] if isinstance(vision["image_size"], list) else 128
    return config | {"vision_config": vision}


def cells() -> Iterator[Other]:
    for family, (block, config) in (MULTIMODAL | QWEN).items():
        batch = 1 if family in ONE_IMAGE else 2
        for attention in ("sdpa", "eager"):
            for method, size in (("full", config), ("full", larger(config)), ("lora", larger(config))):
                yield Other(family, block, size, attention=attention, method=method, batch=batch, seq=64, layer=1,
                            feed=FEEDS.get(family, "tower"))  # fmt: skip


TEXT_BLOCKS = {"qwen2_vl": "Qwen2VLDecoderLayer", "qwen2_5_vl": "Qwen2_5_VLDecoderLayer",
               "qwen3_vl": "Qwen3VLTextDecoderLayer"}  # fmt: skip


def text_cells() -> Iterator[Other]:
    for family, block in TEXT_BLOCKS.items():
        for attention in ("sdpa", "eager"):
            for method, batch, seq in (("full", 2, 128), ("full", 3, 96), ("lora", 3, 96)):
                yield Other(family, block, QWEN[family][1], attention=attention, method=method, batch=batch, seq=seq,
                            layer=1)  # fmt: skip


@pytest.mark.parametrize("cell", [*cells(), *text_cells()], ids=str)
def test_a_block_equals_the_real_module(cell: Other) -> None:
    assert differences(cell) == {}
