"""A corrected copy: what the edits name changes, and nothing else of the user's text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from selector.checks.editing import Tree, edited, json_tree, yaml_tree
from selector.checks.finding import REMOVE, Edit
from selector.checks.fixing import apply

JSON = """{
    "fp16": {"enabled": true, "loss_scale": 0},   "bf16": { "enabled" : true },
\t"zero_optimization": {
        "stage": 2,
        "offload_optimizer": {
            "device": "cpu",
            "pin_memory": true
        },
        "overlap_comm": "true", "betas": [0.9, {"x": 1}, 0.999]
    },
    "train_micro_batch_size_per_gpu": 1e0
}
"""
YAML = """# the cluster of the third floor
distributed_type: FSDP   # two nodes
fsdp_config:
    # by class
    fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
    fsdp_version: 2
    classes:
    - 'LlamaDecoderLayer'  # of HF
    - Other

    nested: {a: 1, b: "x # y",   c: no}
num_processes: 8
empty:
"""


def path(where: str, value: Any) -> Edit:
    return Edit(Path("f"), where, value)


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (path("zero_optimization.overlap_comm", True), '"overlap_comm": "true"', '"overlap_comm": true'),
        (path("bf16", REMOVE), ',   "bf16": { "enabled" : true }', None),
        (path("fp16.loss_scale", REMOVE), '"enabled": true, "loss_scale": 0', '"enabled": true'),
        (path("fp16.enabled", REMOVE), '{"enabled": true, "loss_scale"', '{"loss_scale"'),
        (path("bf16.enabled", REMOVE), '{ "enabled" : true }', "{}"),
        (path("bf16.auto", 1), '"enabled" : true }', '"enabled" : true, "auto" : 1 }'),
        (
            path("zero_optimization.offload_optimizer.ratio", 0.5),
            '"pin_memory": true\n',
            '"pin_memory": true,\n            "ratio": 0.5\n',
        ),
        (
            path("aio.block_size", 9),
            '"train_micro_batch_size_per_gpu": 1e0\n',
            '"train_micro_batch_size_per_gpu": 1e0,\n    "aio": {\n        "block_size": 9\n    }\n',
        ),
        (path("train_micro_batch_size_per_gpu", REMOVE), '    },\n    "train_micro_batch_size_per_gpu": 1e0\n', "    }\n"),
    ],
)  # fmt: skip
def test_json_keeps_its_layout(edit: Edit, before: str, after: str | None) -> None:
    text = edited(JSON, [edit], json_tree)
    if after is None:
        assert '"bf16"' not in text and text.count("\n") == JSON.count("\n") - 1
    else:
        assert text == JSON.replace(before, after)
    assert json.loads(text) == apply(json.loads(JSON), [edit])


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (path("fsdp_config.fsdp_version", 1), "fsdp_version: 2", "fsdp_version: 1"),
        (path("distributed_type", "NO"), "FSDP   # two", "'NO'   # two"),
        (path("fsdp_config.classes", "A"), "classes:\n    - 'LlamaDecoderLayer'  # of HF\n    - Other", "classes: A"),
        (path("fsdp_config.classes", REMOVE), "    classes:\n    - 'LlamaDecoderLayer'  # of HF\n    - Other\n", ""),
        (path("fsdp_config.nested.c", REMOVE), ',   c: no', ""),
        (path("fsdp_config.nested.d", 4), 'c: no}', "c: no,   d: 4}"),
        (path("fsdp_config.offload", True), "c: no}\n", "c: no}\n    offload: true\n"),
        (path("empty", 3), "empty:\n", "empty: 3\n"),
        (path("mixed_precision", "bf16"), "empty:\n", "empty:\nmixed_precision: bf16\n"),
        (path("a.b", 1), "empty:\n", "empty:\na:\n  b: 1\n"),
    ],
)  # fmt: skip
def test_yaml_keeps_its_layout(edit: Edit, before: str, after: str) -> None:
    text = edited(YAML, [edit], yaml_tree)
    assert text == YAML.replace(before, after)
    assert yaml.safe_load(text) == apply(yaml.safe_load(YAML), [edit])


def test_line_ends_stay() -> None:
    text = edited(YAML.replace("\n", "\r\n"), [path("fsdp_config.offload", True), path("empty", REMOVE)], yaml_tree)
    assert text.count("\r\n") == text.count("\n") and "offload: true\r\n" in text


KEYS = st.sampled_from(["stage", "bf16", "enabled", "é", "a b"])
VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(-9, 10**6), st.text('ab"\\{}[],:# é\t', max_size=5), st.just([1, {"k": [2]}])),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=12,
)  # fmt: skip
EDITS = st.lists(st.tuples(st.lists(KEYS, min_size=1, max_size=3), st.just(REMOVE) | VALUES), min_size=1, max_size=3)


@settings(max_examples=150, deadline=None)
@given(data=st.dictionaries(KEYS, VALUES, max_size=4), changes=EDITS, indent=st.sampled_from([None, 2, 4, "\t"]))
def test_the_text_says_what_the_edits_say(data: dict[str, Any], changes: list[Any], indent: Any) -> None:
    """Of JSON always, unless an edit lies inside a value that is no mapping."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    edits = [path(".".join(keys), value) for keys, value in changes]
    want: dict[str, Any] = data
    for edit in {e.path: e for e in reversed(edits)}.values():
        want = apply(want, [edit])
    assert json.loads(edited(text, edits, json_tree)) == want
    tree: Tree = yaml_tree
    plain = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    if indent == 2:  # YAML's odd corners are written anew; they must not raise anything else
        try:
            edited(plain, edits, tree)
        except yaml.YAMLError:
            pass
