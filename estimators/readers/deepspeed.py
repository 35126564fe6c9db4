"""A DeepSpeed JSON -> strategy and workload.

``"auto"`` marks a file of the Hugging Face stack, which fills it from its own arguments: recorded, never guessed. Keys
that another stage has are without effect and end up in ``ignored``. Checked against deepspeed 0.19.8.
"""

from __future__ import annotations

from estimators.knobs import KNOBS, Knob
from estimators.readers import deepspeed_keys as keys
from estimators.readers.batch import read_batch
from estimators.readers.reading import AUTO, Draft, Value
from estimators.readers.section import Section

_ACCUMULATION = next(knob for knob in KNOBS if knob.name == "grad_accum_dtype")
_OFFLOADS = (("offload_optimizer", "optimizer"), ("offload_param", "params"))
_UNKNOWN = "unknown to DeepSpeed 0.19.8"


def read_deepspeed(section: Section, draft: Draft, ranks: int | None = None, default_stage: int = 0) -> None:
    """Collect a whole DeepSpeed configuration into the draft.

    ``default_stage`` is what a stage of ``"auto"`` becomes (2 under accelerate). Raises ``InputError`` for values that
    cannot be used and ``IllegalCombination`` for values that exclude each other.
    """
    for key in sorted(keys.REMOVED & section.data.keys()):
        draft.notes.append(f"{section.where(key)}: DeepSpeed 0.19.8 refuses this block; it was removed")
    stage = _zero(section, draft, default_stage)
    _precision(section, draft, stage)
    _dtypes(section, draft)
    _optimizer(section, draft, stage)
    read_batch(section, draft, _data_parallel_ranks(section, draft, ranks))
    _facts(section, draft)
    section.leftover(draft, keys.TOP_OTHER, "no effect on memory", _UNKNOWN)


# ---------------------------------------------------------------------------------------------------------------- ZeRO


def _zero(section: Section, draft: Draft, default_stage: int) -> int:
    if isinstance(section.data.get("zero_optimization"), bool):  # deprecated, zero/config.py
        stage = int(section.flag("zero_optimization"))
        draft.base = f"zero{stage}"
        draft.values["stage"] = section.found("zero_optimization", stage)
        return stage
    zero = section.section("zero_optimization", '{"stage": 2}')
    if zero is None:
        draft.base = "zero0"
        draft.values["stage"] = section.found("zero_optimization.stage", 0, given=False)
        return 0
    stage = zero.whole("stage", 0, 3, auto=True)
    if stage in (None, AUTO):
        draft.values["stage"] = zero.found("stage", default_stage, given=False)
        stage = default_stage
    else:
        draft.values["stage"] = zero.found("stage", stage)
    draft.base = f"zero{stage}"
    for block, role in _OFFLOADS:
        _offload(zero, draft, block, role)
    for key, knob in keys.ZERO_KNOBS.items():
        _knob(zero, draft, key, knob, stage)
    _pinned(zero, draft)
    for key in sorted(keys.REMOVED_ZERO & zero.data.keys()):
        draft.notes.append(f"{zero.where(key)}: DeepSpeed 0.19.8 refuses this key; it was removed")
    for key, neutral in keys.NOT_ESTIMATED.items():
        if key in zero and zero.data[key] != neutral:
            draft.notes.append(f"{zero.where(key)} changes what the engine holds, and that is not estimated")
    known = keys.ZERO_OTHER | keys.NOT_ESTIMATED.keys() | keys.ZERO_KNOBS.keys()
    zero.leftover(draft, known, "no effect on the estimate", _UNKNOWN)
    return stage


def _knob(zero: Section, draft: Draft, key: str, knob: Knob, stage: int) -> None:
    spellings = [name for name in (key, *keys.SPELLINGS.get(key, ())) if name in zero]
    if len(spellings) > 1:
        raise zero.contradiction(spellings[1], f"is another spelling of {spellings[0]}; keep one")
    if not spellings:
        return
    name = spellings[0]
    if key == "mics_shard_size" and zero.number(name) == -1:
        return zero.ignore(draft, name, "off")
    value = zero.knob(name, knob)
    if f"zero{stage}" in knob.strategies:
        draft.option(knob.name, zero.found(name, value))
    else:
        zero.ignore(draft, name, f"no effect at stage {stage}")


def _offload(zero: Section, draft: Draft, block: str, role: str) -> None:
    old = next(name for name, new in keys.DEPRECATED_OFFLOAD.items() if new == block)
    if old in zero:
        if block in zero:
            raise zero.contradiction(old, f"is the old name of {block}; keep {block}")
        if zero.flag(old):
            _placed(draft, role, block, zero.found(old, "cpu"))
        return
    inner = zero.section(block, '{"device": "cpu"}')
    if inner is None:
        return
    device = inner.word("device", ("none", "cpu", "nvme", AUTO)) or "none"
    if device in ("cpu", "nvme"):
        _placed(draft, role, block, inner.found("device", device))
    for key, knob in keys.OFFLOAD_KNOBS[block].items():
        if key not in inner:
            continue
        value = inner.knob(key, knob)
        if key == "ratio" and value != AUTO and value < 1 and draft.base != "zero3":
            raise inner.contradiction(key, f"{value} is a partial offload, which is stage 3 only; write 1.0")
        if device in ("cpu", "nvme") and draft.base in knob.strategies:
            draft.option(knob.name, inner.found(key, value))
        else:
            inner.ignore(draft, key, "nothing is offloaded" if device in ("none", AUTO) else "stage 3 only")
    if path := inner.word("nvme_path"):
        draft.facts[f"{block}.nvme_path"] = inner.found("nvme_path", path)
    elif device == "nvme":
        draft.notes.append(f"{inner.where('nvme_path')} is absent: DeepSpeed needs a folder on the NVMe")
    if inner.flag("super_offload"):
        draft.notes.append(f"{inner.where('super_offload')} changes what the engine holds, and that is not estimated")
    inner.flag("pin_memory", auto=True)
    inner.leftover(
        draft, keys.OFFLOAD_OTHER[block] | keys.OFFLOAD_KNOBS[block].keys(), "no effect on the estimate", _UNKNOWN
    )


def _placed(draft: Draft, role: str, block: str, device: Value) -> None:
    draft.values[block] = device
    if role == "optimizer":
        draft.optimizer = device.value
    else:
        draft.params = device.value


def _pinned(zero: Section, draft: Draft) -> None:
    """One knob for two blocks: DeepSpeed pins each unless told not to (offload_config.py)."""
    pinned: dict[str, Value] = {}
    for block, role in _OFFLOADS:
        if getattr(draft, role) and (inner := zero.section(block)) is not None:
            value = inner.flag("pin_memory", auto=True)
            given = isinstance(value, bool)
            pinned[block] = inner.found("pin_memory", value if given else True, given)
    stated = [value for value in pinned.values() if value.given]
    if not stated:
        return
    draft.option("pin_memory", stated[0])
    if len({value.value for value in pinned.values()}) > 1:
        draft.notes.append(f"pin_memory differs between the two offloads; {stated[0].where} is taken for both")


# ----------------------------------------------------------------------------------------------------------- precision


def _precision(section: Section, draft: Draft, stage: int) -> None:
    bf16_key = "bf16" if "bf16" in section else "bfloat16"  # the old name is read where the new one is absent
    bf16, fp16 = section.section(bf16_key, '{"enabled": true}'), section.section("fp16", '{"enabled": true}')
    bf16_on = bf16.flag("enabled", auto=True) if bf16 else None
    fp16_on = fp16.flag("enabled", auto=True) if fp16 else None
    if bf16_on is True and fp16_on is True:
        raise section.contradiction("fp16.enabled", f"both fp16 and {bf16_key} are enabled; keep one")
    if fp16 and (scale := fp16.number("loss_scale", auto=True)) is not None:
        draft.facts["loss_scale"] = fp16.found("loss_scale", scale)
    if bf16 and bf16_on is True:
        _half(bf16, draft, "bf16", stage)
    elif fp16 and fp16_on is True:
        _half(fp16, draft, "fp16", stage)
    elif AUTO in (bf16_on, fp16_on):
        block = bf16 if bf16 and bf16_on == AUTO else fp16
        assert block is not None
        draft.field("precision", block.found("enabled", AUTO))
    elif not _autocast(section, draft):
        draft.field("precision", section.found("bf16.enabled", "fp32", given=False))


def _half(block: Section, draft: Draft, dtype: str, stage: int) -> None:
    """16-bit parameters; master weights and states in fp32 unless the block says otherwise."""
    master_key = f"{dtype}_master_weights_and_grads"
    master = block.flag(master_key, auto=True) is True
    states = dtype == "bf16" and block.flag("bf16_optimizer_states", auto=True) is True
    if states and not master:
        raise block.contradiction("bf16_optimizer_states", f"needs {master_key}; enable both")
    if master and stage == 0:
        raise block.contradiction(master_key, "needs ZeRO stage 1, 2 or 3; stage 0 has no master weights of its own")
    if not master:
        draft.field("precision", block.found("enabled", f"{dtype}-mixed"))
        return
    draft.field("precision", block.found(master_key, dtype))
    draft.field("state_dtype", block.found("bf16_optimizer_states", dtype if states else "fp32", given=states))


def _autocast(section: Section, draft: Draft) -> bool:
    """torch_autocast: fp32 parameters, 16-bit compute. True when it is on."""
    block = section.section("torch_autocast", '{"enabled": true, "dtype": "bfloat16"}')
    if block is None or block.flag("enabled") is not True:
        return False
    dtype = keys.DTYPES[block.word("dtype", keys.DTYPES) or "bf16"]
    if dtype == "fp32":
        return False
    draft.field("precision", block.found("dtype" if "dtype" in block else "enabled", f"{dtype}-mixed"))
    draft.field("param_dtype", block.found("enabled", "fp32"))
    draft.notes.append(f"{block.where('enabled')}: parameters stay fp32 and compute runs under autocast")
    return True


def _dtypes(section: Section, draft: Draft) -> None:
    if types := section.section("data_types", '{"grad_accum_dtype": "fp32"}'):
        if dtype := types.word("grad_accum_dtype", keys.DTYPES):
            draft.option(_ACCUMULATION.name, types.found("grad_accum_dtype", keys.DTYPES[dtype]))
        others = ("param_dtype", "buffer_dtype", "keep_in_fp32_modules", "optimizer_state_dtype")
        types.leftover(draft, others, "no effect on the estimate", _UNKNOWN)
    if dtype := section.word("communication_data_type", ("fp32", "fp16", "bf16"), str.lower):
        draft.field("reduce_dtype", section.found("communication_data_type", dtype))


# ------------------------------------------------------------------------------------------------------ everything else


def _optimizer(section: Section, draft: Draft, stage: int) -> None:
    block = section.section("optimizer", '{"type": "AdamW", "params": {"lr": 1e-5}}')
    name = block.word("type") if block else None
    if block is None or name is None:
        return
    params = block.section("params")
    folded = name.lower()
    if folded in keys.ONE_BIT:
        if stage:
            raise block.contradiction("type", f"{name} cannot run under ZeRO; write AdamW, or stage 0")
        draft.gaps["optimizer"] = f"optimizer {name} was removed from DeepSpeed 0.19.8 and is not modelled"
    elif name in keys.UNMODELLED_OPTIMIZERS or folded in keys.UNMODELLED_OPTIMIZERS:
        draft.gaps["optimizer"] = f"optimizer {name} is not modelled; give --optimizer with the nearest one"
    elif folded in keys.OPTIMIZERS or name in keys.TORCH_OPTIMIZERS:
        made = keys.OPTIMIZERS.get(folded) or keys.TORCH_OPTIMIZERS[name]
        if made == "adamw-fused" and params and params.flag("torch_adam"):
            made = "adamw"
        if made == "sgd" and params and params.number("momentum", auto=True) not in (None, 0, AUTO):
            made = "sgd-momentum"
        draft.field("optimizer", block.found("type", made))
    else:
        known = ("Adam", "AdamW", "Lion", "Muon", "Adagrad", "Lamb", *keys.TORCH_OPTIMIZERS)
        hint = "; DeepSpeed takes its CPU Adam by itself when offloading: write AdamW" if "cpu" in folded else ""
        raise block.error("type", f"unknown optimizer {name[:40]!r}{hint or '; write ' + ', '.join(known)}")


def _data_parallel_ranks(section: Section, draft: Draft, ranks: int | None) -> int | None:
    sequence = section.whole("sequence_parallel_size", 1, 65536) or 1
    block = section.section("tensor_parallel", '{"autotp_size": 2}')
    tensor = (block.whole("autotp_size", 0, 65536) or 1) if block else 1
    for what, degree in (("sequence", sequence), ("tensor", tensor)):
        if degree > 1:
            draft.gaps["strategy"] = f"{what} parallelism over {degree} ranks is not modelled"
    if ranks is None:
        return None
    return max(ranks // (sequence * tensor), 1)


def _facts(section: Section, draft: Draft) -> None:
    if (clipping := section.number("gradient_clipping", auto=True)) is not None:
        draft.facts["gradient_clipping"] = section.found("gradient_clipping", clipping)
    for key in ("aio", "activation_checkpointing"):
        if block := section.section(key):
            draft.facts[key] = section.found(key, dict(block.data))
    if "activation_checkpointing" in draft.facts:
        draft.notes.append(
            "activation_checkpointing configures deepspeed.checkpointing, which a model has to call: Hugging Face "
            "models do not, and the block turns nothing on"
        )
