"""Blocks of encoders, encoder-decoders and vision towers equal the real modules: every kept tensor, and both peaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.activations.other_cells import Other, differences
from tests.activations.other_towers import ENCODERS, PAIRS, TOWERS

# On CPU scaled_dot_product_attention takes its flash kernel only without dropout and without a mask that a gradient
# flows to (T5's position bias in full training): there eager is compared, which keeps what dropout keeps.
NO_DROPOUT = {"attention_probs_dropout_prob": 0.0, "attention_dropout": 0.0}
T5_FAMILIES = ("t5", "mt5", "umt5")
SIZES = ((2, 128), (3, 96))


def both_sizes(family: str, block: str, config: dict[str, Any], **rest: Any) -> Iterator[Other]:
    for attention in ("sdpa", "eager"):
        plain = config | (NO_DROPOUT if attention == "sdpa" and family in ENCODERS and family != "modernbert" else {})
        for (batch, seq), method in zip((*SIZES, SIZES[1]), ("full", "full", "lora"), strict=True):
            yield Other(family, block, plain, attention=attention, method=method, batch=batch, seq=seq, **rest)


def cells() -> Iterator[Other]:
    for family, (block, config) in ENCODERS.items():
        yield from both_sizes(family, block, config, layer=1)
    for family in ("bart", "mbart", "pegasus", "whisper"):
        stem, config = PAIRS[family]
        for side in ("Encoder", "Decoder"):
            feed = "audio" if family == "whisper" else "pair"
            yield from both_sizes(family, f"{stem}{side}Layer", config, layer=1, feed=feed)
    for family, (block, config) in TOWERS.items():
        feed = "both" if family in ("clip", "siglip") else "image"
        yield from both_sizes(family, block, config, layer=1, feed=feed)
        if feed == "both":  # the vision tower comes after the text tower
            yield from both_sizes(family, block, config, layer=3, feed=feed)


def t5_cells() -> Iterator[Other]:
    """Encoder's first and second block, decoder's first and second."""
    for family in T5_FAMILIES:
        block, config = PAIRS[family]
        for layer in range(4):
            for attention, method, (batch, seq) in (
                ("eager", "full", SIZES[0]), ("eager", "lora", SIZES[1]), ("sdpa", "lora", SIZES[0]),
            ):  # fmt: skip
                rate = {"dropout_rate": 0.1 if attention == "eager" else 0.0}
                yield Other(family, block, config | rate, attention=attention, method=method, batch=batch, seq=seq,
                            layer=layer, feed="pair", shared_elsewhere=layer % 2 == 1)  # fmt: skip


@pytest.mark.parametrize("cell", [*cells(), *t5_cells()], ids=str)
def test_a_block_equals_the_real_module(cell: Other) -> None:
    assert differences(cell) == {}
