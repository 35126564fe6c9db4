"""Blocks of dense decoders beside the real modules under fake tensors: every kept tensor, and the largest moments."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from tests.activations.cells import Cell, differences, head_differences  # noqa: E402
from tests.activations.dense_families import EAGER_ONLY, FAMILIES, VARIANTS  # noqa: E402

LARGE = {"batch": 3, "seq": 320}


def kernels(family: str) -> tuple[str, ...]:
    return ("eager",) if family in EAGER_ONLY else ("eager", "sdpa")


BLOCKS = [
    Cell(family, config, attention=attention, precision=precision)
    for family, config in FAMILIES.items()
    for attention in kernels(family)
    for precision in ("bf16", "fp32", "amp")
]
SIZES = [Cell(family, config, attention=kernels(family)[-1], **LARGE) for family, config in FAMILIES.items()]
ADAPTERS = [
    Cell(family, config, attention=kernels(family)[-1], method=method, precision=precision)
    for family, config in FAMILIES.items()
    for method, precision in (("lora", "bf16"), ("lora", "amp"))
] + [Cell("llama", FAMILIES["llama"], method="dora", precision=precision) for precision in ("bf16", "fp32", "amp")]
SWITCHES = [Cell(family, {**FAMILIES[family], **extra}, attention=kernels(family)[-1]) for family, extra in VARIANTS]
PADDED = [
    Cell(family, FAMILIES[family], attention=attention, padding="right")
    for family in ("llama", "qwen3", "gpt2", "phi") for attention in kernels(family)
]  # fmt: skip


@pytest.mark.parametrize("cell", [*BLOCKS, *SIZES, *ADAPTERS, *SWITCHES, *PADDED], ids=str)
def test_block_equals_the_real_one(cell: Cell) -> None:
    assert differences(cell) == {}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("wrapped", [{}, {"fp32_outputs": True, "held": True}], ids=["plain", "accelerate"])
def test_head_equals_the_real_one(family: str, wrapped: dict[str, Any]) -> None:
    cell = Cell(family, FAMILIES[family], attention=kernels(family)[-1])
    assert head_differences(cell, **wrapped) == {}


@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_head_in_other_precisions(precision: str) -> None:
    assert head_differences(Cell("llama", FAMILIES["llama"], precision=precision)) == {}
