"""Liger's kernels: what their autograd functions keep and make equals the ledgers, in the families that Liger patches."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("liger_kernel", reason="pip install --no-deps liger-kernel")

from estimators.activations.fused import APART
from estimators.activations.head import head, with_rows
from estimators.activations.losses import Loss
from estimators.activations.profile import Conditions, profile
from estimators.values import replace
from tests.activations.cells import Cell, block_truth, compared, conditions_of, head_truth, real_model, spec_of
from tests.activations.dense_families import EAGER_ONLY, FAMILIES
from tests.activations.liger import patched

BLOCKS = ("rope", "rms_norm", "swiglu", "geglu")  # switches of Liger's patches
PATCHED = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "granite", "phi3", "olmo2", "olmo3", "gemma", "gemma2",
           "gemma3_text")  # fmt: skip
LARGE = {"batch": 3, "seq": 320}
METHODS = ({}, {"method": "lora", "precision": "amp", **LARGE})


def fused(cell: Cell) -> Conditions:
    found = conditions_of(cell)
    kernels = replace(found.kernels, fused=True, fused_in_place=cell.model_type not in APART)
    return replace(found, kernels=kernels)


def cell_of(family: str, **rest: Any) -> Cell:
    return Cell(family, FAMILIES[family], attention="eager" if family in EAGER_ONLY else "sdpa", **rest)


@pytest.mark.parametrize("cell", [cell_of(f, **rest) for f in PATCHED for rest in METHODS], ids=str)
def test_a_block_equals_ligers(cell: Cell) -> None:
    spec = spec_of(cell)
    part = spec.blocks[0]
    with patched(cell.model_type.removesuffix("_text"), cell.model_type) as patch:
        known = inspect.signature(patch).parameters
        patch(**{name: name in BLOCKS for name in known if name != "model"})
        truth = block_truth(cell, real_model(cell), part.class_name)
    assert compared(profile(part, spec, fused(cell)), truth, cell) == {}


HEADS = [
    cell_of("llama", **rest)
    for rest in (*METHODS, LARGE, {"precision": "amp"}, {"method": "lora"}, {"method": "lora", "precision": "amp"})
]


@pytest.mark.parametrize("cell", [*HEADS, cell_of("gemma")], ids=str)
def test_the_fused_loss_equals_ligers(cell: Cell) -> None:
    spec = spec_of(cell)
    with patched(cell.model_type) as patch:
        known = inspect.signature(patch).parameters
        patch(**{name: name in ("rms_norm", "fused_linear_cross_entropy") for name in known if name != "model"})
        truth = head_truth(cell, real_model(cell))
    loss = with_rows(spec, Loss("fused"), cell.batch * cell.seq)
    assert compared(head(spec, fused(cell), loss, holds_input=True), truth, cell) == {}
