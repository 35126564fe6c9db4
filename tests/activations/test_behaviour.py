"""The defaults that blocks assume are those of the transformers config classes."""

from __future__ import annotations

from typing import Any

import pytest

from estimators.activations.behaviour import BEHAVIOUR

transformers = pytest.importorskip("transformers")


def assumed(config: dict[str, Any], key: str) -> Any:
    if key in ("partial_rotary_factor", "rotary_pct"):
        return (config.get("rope_parameters") or {}).get("partial_rotary_factor", config.get(key))
    return config.get(key)


@pytest.mark.parametrize("family", BEHAVIOUR)
def test_defaults_are_those_of_the_class(family: str) -> None:
    config = transformers.AutoConfig.for_model(family).to_dict()
    assert {key: assumed(config, key) for key in BEHAVIOUR[family]} == BEHAVIOUR[family]
