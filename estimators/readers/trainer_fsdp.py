"""``fsdp`` and ``fsdp_config`` of TrainingArguments, as transformers 5.24 reads them (``_process_fsdp_args``).

Version 2 unless ``fsdp_config`` says 1. The strings of ``fsdp`` ("full_shard auto_wrap offload") are the deprecated
way to say the same, and lose against ``fsdp_config``. In version 1 the strategy reaches accelerate as
``reshard_after_forward``, which its plugin does not use: the run shards fully, whatever was asked for.
"""

from __future__ import annotations

from estimators.readers import fsdp
from estimators.readers.follow import follow
from estimators.readers.reading import Draft
from estimators.readers.section import Section
from estimators.readers.trainer_keys import FSDP_UNREAD

_OPTIONS = (*(name.lower() for name in fsdp.SHARDING), "offload", "auto_wrap")


def wants_fsdp(section: Section) -> bool:
    return bool(section.data.get("fsdp"))


def read_trainer_fsdp(section: Section, draft: Draft) -> None:
    """Collect both keys into the draft. Raises ``InputError`` and ``IllegalCombination``."""
    options = _options(section)
    block = _config(section, draft)
    version = block.whole("version", 1, 2) or 2
    draft.facts["fsdp_version"] = block.found("version", version, "version" in block)
    (_version2 if version == 2 else _version1)(section, block, draft, options)
    if block.flag("cpu_offload") or (block.raw("cpu_offload") is None and "offload" in options):
        draft.params = "cpu"
        place = block if "cpu_offload" in block else section
        draft.values["offload_param"] = place.found("cpu_offload" if place is block else "fsdp", "cpu")
    if "offload_params" in block:
        block.ignore(draft, "offload_params", "the Trainer reads cpu_offload; this is accelerate's name")
        draft.notes.append(f"{block.where('offload_params')}: the Trainer does not read it; write cpu_offload")
    policy = block.word("auto_wrap_policy", fsdp.WRAPPING)
    fsdp.put_wrapping(
        block, draft, "auto_wrap_policy", policy, "transformer_layer_cls_to_wrap", "TRANSFORMER_BASED_WRAP"
    )
    if (least := block.whole("min_num_params")) is not None:
        draft.facts["min_num_params"] = block.found("min_num_params", least)
    fsdp.put_flag_fact(block, draft, "cpu_ram_efficient_loading", False)
    fsdp.put_state_dict(block, draft, "state_dict_type", "FULL_STATE_DICT")
    if block.flag("activation_checkpointing", text=True):
        draft.field("checkpointing", block.found("activation_checkpointing", "full"))
    if block.flag("xla"):
        draft.gaps["strategy"] = "FSDP of PyTorch/XLA is not modelled"
    block.leftover(draft, FSDP_UNREAD, "read by PyTorch/XLA only", "not read by the Trainer")


def _options(section: Section) -> tuple[str, ...]:
    value = section.raw("fsdp")
    items = value.split() if isinstance(value, str) else value
    if items is True:
        return ()
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise section.error("fsdp", "write true and say the rest in fsdp_config")
    for item in items:
        if item.lower() not in _OPTIONS:
            raise section.error("fsdp", f"unknown option {item[:40]!r}; write {', '.join(_OPTIONS)}")
    return tuple(item.lower() for item in items)


def _config(section: Section, draft: Draft) -> Section:
    value = section.raw("fsdp_config")
    if isinstance(value, str):
        block = follow(section, "fsdp_config", draft)
    else:
        block = section.section("fsdp_config", '{"version": 2}') or Section(section.document, {}, "fsdp_config.")
    return block.renamed(lambda key: key.removeprefix("fsdp_"))


def _version2(section: Section, block: Section, draft: Draft, options: tuple[str, ...]) -> None:
    key = "reshard_after_forward"
    asked = [name for name in options if name.upper() in fsdp.SHARDING]
    beyond = [name for name in asked if name not in ("full_shard", "shard_grad_op")]
    if beyond:
        raise section.contradiction("fsdp", f"{beyond[0]} exists in FSDP1 only; write full_shard, or version 1")
    reshard = block.flag(key, text=True)
    if reshard is None and asked:
        reshard = asked[0] == "full_shard"
        draft.values["sharding"] = section.found("fsdp", reshard)
    else:
        draft.values["sharding"] = block.found(key, reshard is not False, reshard is not None)
    draft.base = "fsdp-shard-grad-op" if reshard is False else "fsdp-full-shard"
    for name in ("forward_prefetch", "backward_prefetch", "use_orig_params", "sync_module_states", "limit_all_gathers"):
        if name in block:
            block.ignore(draft, name, "not read in version 2")


def _version1(section: Section, block: Section, draft: Draft, options: tuple[str, ...]) -> None:
    key = "reshard_after_forward"
    asked = fsdp.one_of(block, key, fsdp.SHARDING)
    place, name = (block, key) if asked else (section, "fsdp")
    asked = asked or next((item.upper() for item in options if item.upper() in fsdp.SHARDING), None)
    fsdp.put_fsdp1_sharding(draft, "FULL_SHARD", place.found(name, "FULL_SHARD", asked == "FULL_SHARD"))
    if asked not in (None, "FULL_SHARD"):
        draft.notes.append(
            f"{place.where(name)} {asked}: the Trainer hands it to accelerate as reshard_after_forward, which "
            "FSDP1 does not use; the run is FULL_SHARD"
        )
    prefetch = fsdp.one_of(block, "backward_prefetch", tuple(fsdp.PREFETCH))
    given = prefetch is not None
    draft.option("backward_prefetch", block.found("backward_prefetch", fsdp.PREFETCH[prefetch or "NO_PREFETCH"], given))
    if (forward := block.flag("forward_prefetch", text=True)) is not None:
        draft.option("forward_prefetch", block.found("forward_prefetch", int(forward)))
    original = block.flag("use_orig_params", text=True)
    draft.option("use_orig_params", block.found("use_orig_params", original is not False, original is not None))
    if (limit := block.flag("limit_all_gathers", text=True)) is not None:
        draft.option("limit_all_gathers", block.found("limit_all_gathers", limit))
    fsdp.put_flag_fact(block, draft, "sync_module_states", True)
