"""A config.json may hold anything: the answer is a spec, or one message that names the file, the key and the value."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from estimators.errors import AdvisorError, InputError
from estimators.model import catalogue, resolve_model
from estimators.model.families import FAMILIES
from estimators.model.files import MAX_BYTES

GOOD: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
}  # fmt: skip
FILES = [
    ("empty", b"", "is not JSON"),
    ("truncated", json.dumps(GOOD).encode()[:-9], "is not JSON"),
    ("binary", bytes(range(128, 256)), "is not text"),
    ("nul", b"\0" * 100, "is not JSON"),
    ("deep", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    ("list", b"[1, 2]", r"holds \[1, 2\]; a config is an object"),
    ("number", b"7", "holds 7; a config is an object"),
    ("nan", b'{"model_type": "llama", "hidden_size": NaN}', "a value is NaN"),
    ("infinity", b'{"model_type": "llama", "hidden_size": -Infinity}', "a value is -Infinity"),
    ("digits", b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}", "is not JSON"),
    ("no type", b"{}", "model_type is None; give a name"),
    ("type", b'{"model_type": ["llama"]}', r"model_type is \['llama'\]; give a name"),
    ("huge", b" " * (MAX_BYTES + 1), "bytes, a config.json at most"),
]
VALUES = [
    ("hidden_size", "64", "hidden_size is '64'; give a whole number"),
    ("hidden_size", -64, "hidden_size is -64; give 1 to"),
    ("hidden_size", 0, "hidden_size is 0; give 1 to"),
    ("hidden_size", 64.0, "hidden_size is 64.0; give a whole number"),
    ("hidden_size", True, "hidden_size is True; give a whole number"),
    ("hidden_size", [64], r"hidden_size is \[64\]; give a whole number"),
    ("vocab_size", 10**30, "vocab_size is 10+; give 1 to"),
    ("num_hidden_layers", 10**6, "num_hidden_layers is 1000000; give 1 to 10,000"),
    ("num_attention_heads", 5, "hidden_size 64 is not a multiple of num_attention_heads 5"),
    ("tie_word_embeddings", "yes", "tie_word_embeddings is 'yes'; give true or false"),
]


@pytest.mark.parametrize(("name", "data", "message"), FILES, ids=[row[0] for row in FILES])
def test_a_file_that_is_no_config(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        resolve_model(path)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(("key", "value", "message"), VALUES, ids=[f"{key}={value!r:.20}" for key, value, _ in VALUES])
def test_a_value_that_is_none(tmp_path: Path, key: str, value: object, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**GOOD, key: value}))
    with pytest.raises(InputError, match=message) as caught:
        resolve_model(path)
    assert "config.json" in str(caught.value)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match="is not a regular file"):
        resolve_model(tmp_path)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert resolve_model(tmp_path).num_layers == 3


def test_odd_text_does_not_break_the_message() -> None:
    with pytest.raises(InputError) as caught:
        resolve_model({**GOOD, "hidden_size": "\ud800\n" * 1000})
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300


# One config of each family in the catalogue, as small as its fuzzing needs.
CONFIGS = list({e.config["model_type"]: dict(e.config) for e in catalogue.entries()}.values())
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 70), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5),
    st.lists(st.integers(-2, 9), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A good config with one to three values replaced, or keys dropped, also one level down."""
    config = dict(draw(st.sampled_from(CONFIGS)))
    for _ in range(draw(st.integers(1, 3))):
        inner, descend = [k for k, v in config.items() if isinstance(v, dict)], draw(st.booleans())
        target = config
        if inner and descend:
            key = draw(st.sampled_from(inner))
            target = config[key] = dict(config[key])
        keys = [key for key in target if key not in ("model_type", "architectures")]
        if not keys:
            continue
        key = draw(st.sampled_from(keys))
        if draw(st.integers(0, 4)) == 0:
            del target[key]
        else:
            target[key] = draw(SCALARS)
    return config


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_a_damaged_config_never_crashes(config: dict[str, Any]) -> None:
    assert config["model_type"] in FAMILIES
    try:
        spec = resolve_model(config)
    except AdvisorError as wrong:
        assert str(wrong).startswith("config") and "\n" not in str(wrong)
        assert "does not describe a network" not in str(wrong), "a formula tripped; it should check the value"
    else:
        assert spec.num_params >= 0
        assert all(size >= 0 for part in spec.parts for p in part.parameters for size in p.shape)
