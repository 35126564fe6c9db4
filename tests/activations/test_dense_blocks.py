"""Blocks of dense decoders beside the real modules under fake tensors: every kept tensor, and the largest moments."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from estimators.memory import resolve
from tests.activations.cells import (
    Cell,
    checkpointing_differences,
    compared,
    differences,
    head_differences,
    our_block,
    qlora_differences,
    real_block,
)
from tests.activations.dense_families import EAGER_ONLY, FAMILIES, VARIANTS

LARGE = {"batch": 3, "seq": 320}


def kernels(family: str) -> tuple[str, ...]:
    return ("eager",) if family in EAGER_ONLY else ("eager", "sdpa")


# Their models add position embeddings to what they are given, so that the head cannot be run alone.
POSITIONS = ("gpt2", "gpt_bigcode", "gpt_neo", "opt", "bloom")


BLOCKS = [
    Cell(family, config, attention=attention)
    for family, config in FAMILIES.items()
    for attention in kernels(family)
]  # fmt: skip
PRECISIONS = [
    Cell(family, config, attention=kernels(family)[index % len(kernels(family))], precision=precision)
    for index, (family, config) in enumerate(FAMILIES.items())
    for precision in ("fp32", "amp")
]
SIZES = [Cell(family, config, attention=kernels(family)[0], **LARGE) for family, config in FAMILIES.items()]
ADAPTERS = [
    Cell(family, config, attention=kernels(family)[-1], method="lora", precision=("bf16", "amp")[index % 2])
    for index, (family, config) in enumerate(FAMILIES.items())
] + [
    Cell("llama", FAMILIES["llama"], method=method, precision=precision)
    for method in ("lora", "dora") for precision in ("bf16", "fp32", "amp")
]  # fmt: skip
SWITCHES = [Cell(family, {**FAMILIES[family], **extra}, attention=kernels(family)[-1]) for family, extra in VARIANTS]
ONE_HEAD = {**FAMILIES["falcon"], "new_decoder_architecture": False, "multi_query": True}  # Falcon-7B
SWITCHES += [
    Cell("falcon", ONE_HEAD, **rest)
    for rest in ({"attention": "eager"}, {"method": "lora", "precision": "amp"}, {"padding": "right", **LARGE})
]
PADDED = [
    Cell(family, FAMILIES[family], attention=attention, padding="right")
    for family in ("llama", "qwen3", "gpt2", "phi") for attention in kernels(family)
]  # fmt: skip


@pytest.mark.parametrize("cell", [*BLOCKS, *PRECISIONS, *SIZES, *ADAPTERS, *SWITCHES, *PADDED], ids=str)
def test_block_equals_the_real_one(cell: Cell) -> None:
    assert differences(cell) == {}


ACCELERATE = {"fp32_outputs": True, "held": True}  # outputs copied to fp32, and held by the loop
HEADS = [
    *(
        (Cell(family, config, attention=kernels(family)[-1]), {})
        for family, config in FAMILIES.items()
        if family not in POSITIONS
    ),
    *((Cell("llama", FAMILIES["llama"], precision=precision), ACCELERATE) for precision in ("bf16", "fp32", "amp")),
    *((Cell(family, FAMILIES[family], attention="eager"), ACCELERATE) for family in ("gemma2", "granite")),
]


@pytest.mark.parametrize(("cell", "wrapped"), HEADS, ids=str)
def test_head_equals_the_real_one(cell: Cell, wrapped: dict[str, Any]) -> None:
    assert head_differences(cell, **wrapped) == {}


@pytest.mark.parametrize("precision", ["bf16", "amp"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["again", "reentrant"])
def test_checkpointed_block_equals_the_real_one(precision: str, reentrant: bool) -> None:
    cell = Cell("llama", FAMILIES["llama"], precision=precision)
    assert checkpointing_differences(cell, reentrant, tolerance=0.06 if reentrant else 0.005) == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_eager_where_transformers_has_no_sdpa(family: str) -> None:
    import transformers

    run = resolve({"model_type": family, **FAMILIES[family]}, "1xH100", "single", seq_len=64)
    supported = getattr(transformers, run.model.class_name)._supports_sdpa
    assert run.attention == ("sdpa" if supported else "eager")


def test_quantised_block_equals_the_real_one() -> None:
    pytest.importorskip("bitsandbytes")
    assert qlora_differences(Cell("llama", FAMILIES["llama"])) == {}


def test_another_size_is_seen() -> None:
    """The comparison can fail: a block of the same family with a wider MLP is not equal."""
    ours, class_name = our_block(Cell("llama", FAMILIES["llama"]))
    truth = real_block(Cell("llama", {**FAMILIES["llama"], "intermediate_size": 192}), class_name)
    assert set(compared(ours, truth, Cell("llama"))) >= {"kept but not predicted", "backward"}
