"""How deep a network is, and the same run of a shallower one: arithmetic, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from math import gcd, lcm
from typing import Any

from estimators.memory import resolve
from estimators.model.spec import ModelSpec
from estimators.run import Run
from estimators.values import replace

# Keys of a config that count equal blocks, in any section.
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "depth",
          "encoder_layers", "decoder_layers")  # fmt: skip
LISTS = ("layer_types", "mlp_layer_types")  # one entry a block


def depth_of(model: ModelSpec) -> int:
    """Blocks of the deepest stack of the network."""
    return max(int(value) for section in sections(model.config) for key in DEPTHS if (value := section.get(key)))


def sections(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [config, *(value for value in config.values() if isinstance(value, Mapping))]


def period_of(model: ModelSpec) -> int:
    """After how many blocks of the deepest stack all stacks have whole ones more, of kinds that repeat (``layer_types``)."""
    together = depth_of(model) // gcd(*(int(s[key]) for s in sections(model.config) for key in DEPTHS if s.get(key)))
    return lcm(together, _kinds_repeat(model))


def _kinds_repeat(model: ModelSpec) -> int:
    """Gemma alternates two kinds of blocks."""
    kinds = next((k for s in sections(model.config) if (k := s.get("layer_types") or _attention_types(s))), None)
    if kinds is None:
        return 2 if str(model.config.get("model_type")) == "gemma2" else 1  # not in the config, made by the class
    size = len(kinds)
    return next(n for n in range(1, size + 1) if all(kinds[i] == kinds[i % n] for i in range(size)))


def _attention_types(section: Mapping[str, Any]) -> list[str]:
    """GPT-Neo's list of lists of kinds and how often each comes, written out block by block."""
    return [kind for kinds, repeats in section.get("attention_types") or () for _ in range(repeats) for kind in kinds]


def at_depth(run: Run, layers: int) -> Run:
    """The same run of a network whose stacks are cut to ``layers`` blocks of the deepest, in proportion."""
    full = depth_of(run.model)
    if layers == full:
        return run
    config = deepcopy(dict(run.model.config))
    for section in sections(config):
        for key in DEPTHS:
            if section.get(key):
                section[key] = max(1, section[key] * layers // full)  # type: ignore[index]
        for key in LISTS:
            if section.get(key):
                section[key] = list(section[key])[:layers]  # type: ignore[index]
        if kinds := _attention_types(section):
            section["attention_types"] = [[kinds[:layers], 1]]  # type: ignore[index]
    made = resolve(config, run.cluster, run.strategy, run.settings.device, workload=run.workload)
    return replace(made, model=replace(made.model, name=run.model.name))
