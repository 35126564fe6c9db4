"""The comparison with transformers can fail: each aspect, when wrong, is noticed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimators.model.families import build
from estimators.model.spec import ModelSpec

pytest.importorskip("transformers")

from tests.model.meta import compare_with_transformers

CONFIG: dict[str, Any] = {"model_type": "llama", "vocab_size": 131, "hidden_size": 48, "intermediate_size": 76,
                          "num_hidden_layers": 3, "num_attention_heads": 6, "tie_word_embeddings": True}  # fmt: skip


def with_block(spec: ModelSpec, **changes: Any) -> ModelSpec:
    return replace(spec, parts=tuple(replace(p, **changes) if p.is_block else p for p in spec.parts))


def with_first_parameter(spec: ModelSpec, **changes: Any) -> ModelSpec:
    block = spec.blocks[0].parameters
    return with_block(spec, parameters=(replace(block[0], **changes), *block[1:]))


SPEC = build(CONFIG)
BLOCK = SPEC.blocks[0].parameters
WRONG = {
    "name": with_first_parameter(SPEC, name="self_attn.query.weight"),
    "shape": with_first_parameter(SPEC, shape=(48, 47)),
    "kind": with_first_parameter(SPEC, kind="conv1d"),
    "fp32 mark": with_first_parameter(SPEC, keep_fp32="fp16"),
    "order": with_block(SPEC, parameters=(BLOCK[1], BLOCK[0], *BLOCK[2:])),
    "count": with_block(SPEC, count=2),
    "class": with_block(SPEC, class_name="LlamaAttention"),
    "tied": replace(SPEC, tied={}),
    "buffers": replace(SPEC, parts=tuple(replace(p, buffers=()) for p in SPEC.parts)),
    "embedding": replace(SPEC, embedding="model"),
    "head": replace(SPEC, head=""),
}


def test_the_right_spec_passes() -> None:
    compare_with_transformers(SPEC, CONFIG)


@pytest.mark.parametrize("aspect", WRONG)
def test_a_wrong_aspect_is_noticed(aspect: str) -> None:
    with pytest.raises(AssertionError):
        compare_with_transformers(WRONG[aspect], CONFIG)
