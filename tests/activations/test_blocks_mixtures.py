"""Blocks of mixtures of experts equal the real modules: every kept tensor, and the peaks of forward and backward."""

from __future__ import annotations

import pytest

from tests.activations.other_cells import Other, differences
from tests.activations.other_families import MIXTURES

BLOCKS = {
    "mixtral": "Mixtral", "qwen2_moe": "Qwen2Moe", "qwen3_moe": "Qwen3Moe", "olmoe": "Olmoe",
    "granitemoe": "GraniteMoe", "glm4_moe": "Glm4Moe", "deepseek_v2": "DeepseekV2", "deepseek_v3": "DeepseekV3",
    "phimoe": "Phimoe", "gpt_oss": "GptOss", "llama4_text": "Llama4Text",
}  # fmt: skip
# peft cannot adapt these routers with all-linear: they are nn.Linear and return tuples.
ROUTER_FAILS = ("phimoe", "llama4_text")
# transformers has no sdpa for gpt-oss.
KERNELS = {"gpt_oss": ("eager",)}


def cells() -> list[Other]:
    made = []
    for family, stem in BLOCKS.items():
        targets = ("q_proj", "v_proj") if family in ROUTER_FAILS else "all-linear"
        for attention in KERNELS.get(family, ("sdpa", "eager")):
            for method, batch, seq in (("full", 2, 128), ("full", 3, 96), ("lora", 2, 96)):
                made.append(Other(family, f"{stem}DecoderLayer", MIXTURES[family], attention=attention, method=method,
                                  targets=targets, batch=batch, seq=seq, layer=1))  # fmt: skip
    return made


@pytest.mark.parametrize("cell", cells(), ids=str)
def test_a_mixture_equals_the_real_module(cell: Other) -> None:
    assert differences(cell) == {}
