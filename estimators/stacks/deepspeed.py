"""ZeRO settings that each stack's own configuration gives; what stands nowhere is the engine's default.

``auto`` marks what transformers and accelerate fill in from the hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimators.errors import IllegalCombination
from estimators.knobs import Value
from estimators.model.spec import ModelSpec

AUTO = "auto"
_AUTO3: Mapping[str, Value] = {
    "reduce_bucket_size": AUTO, "prefetch_bucket_size": AUTO, "param_persistence_threshold": AUTO,
}  # fmt: skip

# family -> stage -> knob -> value. Sources: transformers/integrations/deepspeed.py (what ``auto`` becomes), ms-swift
# swift/config, LLaMA-Factory examples/deepspeed, axolotl deepspeed_configs. accelerate's plugin writes no bucket.
FILES: Mapping[str, Mapping[int, Mapping[str, Value]]] = {
    "auto": {
        1: {"reduce_bucket_size": AUTO, "pin_memory": True},
        2: {"reduce_bucket_size": AUTO, "pin_memory": True},
        3: {**_AUTO3, "pin_memory": True, "gather_16bit_on_save": True, "zero_init": True},
    },
    "plugin": {3: {"zero_init": True}},
    "engine": {},
    "swift": {
        1: {"reduce_bucket_size": 200_000_000, "allgather_bucket_size": 200_000_000, "overlap_comm": False,
            "pin_memory": True},
        2: {"reduce_bucket_size": 200_000_000, "allgather_bucket_size": 200_000_000, "overlap_comm": False,
            "pin_memory": True},
        3: {**_AUTO3, "overlap_comm": False, "pin_memory": True, "gather_16bit_on_save": True, "zero_init": True},
    },
    "llamafactory": {
        1: {"reduce_bucket_size": 500_000_000, "allgather_bucket_size": 500_000_000, "overlap_comm": False,
            "round_robin_gradients": True, "pin_memory": True},
        2: {"reduce_bucket_size": 500_000_000, "allgather_bucket_size": 500_000_000, "overlap_comm": False,
            "round_robin_gradients": True, "pin_memory": True},
        3: {**_AUTO3, "overlap_comm": False, "pin_memory": True, "gather_16bit_on_save": True, "zero_init": True},
    },
    "axolotl": {
        1: {"overlap_comm": True},
        2: {"overlap_comm": True},
        3: {**_AUTO3, "overlap_comm": True, "sub_group_size": 1, "max_live_parameters": 0, "max_reuse_distance": 0,
            "gather_16bit_on_save": True, "zero_init": True},
    },
}  # fmt: skip


def file_knobs(family: str, stage: int, model: ModelSpec) -> dict[str, Value]:
    """Knobs that a stack's file sets at this stage, ``auto`` replaced by what it becomes for this network."""
    given = FILES.get(family, {}).get(stage, {})
    if AUTO not in given.values():
        return dict(given)
    hidden = hidden_size(model)
    # transformers/integrations/deepspeed.py, trainer_config_finalize
    filled: Mapping[str, Value] = {
        "reduce_bucket_size": hidden * hidden,
        "prefetch_bucket_size": int(0.9 * hidden * hidden),
        "param_persistence_threshold": 10 * hidden,
    }
    return {name: filled[name] if value == AUTO else value for name, value in given.items()}


def hidden_size(model: ModelSpec) -> int:
    """The size that ``auto`` is computed from: hidden_size, the largest of hidden_sizes, or the text model's.

    Raises ``IllegalCombination`` where transformers would.
    """
    config = model.config
    text = config.get("text_config")
    for level in (config, text if isinstance(text, Mapping) else {}):
        for key in ("hidden_size", "n_embd", "d_model", "dim", "hidden_dim"):  # names that attribute_map translates
            size = level.get(key)
            if isinstance(size, int) and not isinstance(size, bool):
                return size
        sizes = level.get("hidden_sizes")
        if isinstance(sizes, list | tuple) and sizes:
            return max(int(s) for s in sizes)
    raise IllegalCombination(
        f"{model.name or model.class_name}: the config has neither hidden_size nor hidden_sizes, so DeepSpeed's auto "
        "buckets cannot be filled in; give reduce_bucket_size, prefetch_bucket_size and param_persistence_threshold"
    )
