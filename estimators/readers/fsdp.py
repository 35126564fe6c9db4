"""What the FSDP settings of accelerate and of the Trainer have in common: names of strategies, prefetch, wrapping.

Source: accelerate 1.15 utils/constants.py and utils/dataclasses.py (``FullyShardedDataParallelPlugin``).
"""

from __future__ import annotations

from estimators.readers.reading import Draft, Value
from estimators.readers.section import Section

# accelerate counts from 1; torch calls the fifth _HYBRID_SHARD_ZERO2.
SHARDING = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
FSDP1_BASE = {
    "FULL_SHARD": "fsdp1-full-shard", "SHARD_GRAD_OP": "fsdp1-shard-grad-op", "NO_SHARD": "fsdp1-no-shard",
    "HYBRID_SHARD": "fsdp1-hybrid-shard", "HYBRID_SHARD_ZERO2": "fsdp1-hybrid-shard",
}  # fmt: skip
PREFETCH = {"BACKWARD_PRE": "pre", "BACKWARD_POST": "post", "NO_PREFETCH": "none"}
WRAPPING = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
STATE_DICTS = ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT")


def one_of(section: Section, key: str, names: tuple[str, ...]) -> str | None:
    """A name in any case or its number from 1, as accelerate reads it; None when absent."""
    value = section.raw(key)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str):
        text = value.strip().upper()
        if text in names:
            return text
        if text.isdecimal() and len(text) < 3 and 1 <= int(text) <= len(names):
            return names[int(text) - 1]
    numbered = ", ".join(f"{name} ({number})" for number, name in enumerate(names, 1))
    raise section.error(key, f"unknown value {str(value)[:40]!r}; write {numbered}")


def put_fsdp1_sharding(draft: Draft, sharding: str, place: Value) -> None:
    """The strategy of a FSDP1 name; the hybrid without resharding is a gap."""
    draft.base = FSDP1_BASE[sharding]
    draft.values["sharding"] = place
    if sharding == "HYBRID_SHARD_ZERO2":
        draft.gaps["strategy"] = "HYBRID_SHARD_ZERO2 is not modelled; HYBRID_SHARD or fsdp1-shard-grad-op are"


def put_wrapping(section: Section, draft: Draft, key: str, policy: str | None, classes_key: str, default: str) -> None:
    """``wrap`` is left to the stack under TRANSFORMER_BASED_WRAP: which root it leaves depends on its version."""
    settled = policy or default
    draft.facts["auto_wrap_policy"] = section.found(key, settled, policy is not None)
    if settled == "NO_WRAP":
        draft.option("wrap", section.found(key, "none", policy is not None))
        draft.notes.append(f"{section.where(key)}: without a wrapping policy the whole model is one FSDP unit")
    elif settled == "SIZE_BASED_WRAP":
        draft.notes.append(f"{section.where(key)}: units by size are estimated as one unit a block")
    if classes := section.words(classes_key):
        draft.facts["wrap_classes"] = section.found(classes_key, classes)


def put_state_dict(section: Section, draft: Draft, key: str, default: str) -> None:
    given = one_of(section, key, STATE_DICTS)
    draft.facts["state_dict_type"] = section.found(key, given or default, given is not None)


def put_flag_fact(section: Section, draft: Draft, key: str, default: bool) -> bool:
    """A boolean that is a fact under the name without ``fsdp_``."""
    given = section.flag(key, text=True)
    value = default if given is None else bool(given)
    draft.facts[key.removeprefix("fsdp_")] = section.found(key, value, given is not None)
    return value
