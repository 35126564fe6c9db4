"""TrainingArguments as JSON or YAML, also inside a superset (TRL, LLaMA-Factory) -> strategy and workload.

A file that is a whole set of arguments (it has ``output_dir`` or a batch size) also speaks through its defaults: a
micro-batch of 8, no checkpointing; these are values that were not ``given``. Keys of the supersets that decide the
memory and are not TrainingArguments (LoRA, 4-bit) become gaps or notes that name the flag to give.

Sources: transformers 5.24 training_args.py, trainer.py, integrations/deepspeed.py; trl 1.16.
"""

from __future__ import annotations

from estimators.errors import short
from estimators.knobs import KNOBS
from estimators.readers import trainer_keys as keys
from estimators.readers.deepspeed import read_deepspeed
from estimators.readers.follow import follow
from estimators.readers.reading import AUTO, Draft
from estimators.readers.section import Section
from estimators.readers.trainer_fsdp import read_trainer_fsdp, wants_fsdp

_DDP_KNOBS = {knob.name: knob for knob in KNOBS if "ddp" in knob.strategies}
_COUNTS = (("per_device_train_batch_size", "micro_batch"), ("gradient_accumulation_steps", "grad_accum"))


def read_training_arguments(section: Section, draft: Draft, ranks: int | None = None) -> None:
    """Collect the file into the draft. Raises ``InputError`` and ``IllegalCombination``."""
    stack = _stack(section, draft)
    _engine(section, draft, ranks)
    _batch(section, draft)
    _precision(section, draft)
    _optimizer(section, draft)
    _checkpointing(section, draft)
    _model_side(section, draft)
    _ddp(section, draft)
    _elsewhere(section, draft)
    _defaults(section, draft, stack)
    section.leftover(draft, keys.OTHER | keys.DDP.keys(), "no effect on the estimate", "not an argument of the Trainer")


def _stack(section: Section, draft: Draft) -> str:
    for stack, marks in keys.STACK_MARKS.items():
        if found := sorted(marks & section.data.keys()):
            draft.field("stack", section.found(found[0], stack, given=False))
            return stack
    return "trainer"


def _engine(section: Section, draft: Draft, ranks: int | None) -> None:
    deepspeed = section.raw("deepspeed")
    if deepspeed and wants_fsdp(section):
        raise section.contradiction("fsdp", "excludes deepspeed; keep one")
    if deepspeed:
        if isinstance(deepspeed, str):
            inner = follow(section, "deepspeed", draft)
        else:
            inner = section.section("deepspeed", "a path or the configuration") or section
        read_deepspeed(inner, draft, ranks, default_stage=2)
        if draft.base == "zero3":  # DeepSpeedPlugin: zero3_init_flag follows the stage
            draft.option("zero_init", section.found("deepspeed", True, given=False))
        if draft.values["precision"].given is False:  # accelerate adds the block that bf16 or fp16 asks for
            draft.workload.pop("precision"), draft.values.pop("precision")
    elif wants_fsdp(section):
        read_trainer_fsdp(section, draft)
    else:
        section.raw("fsdp")
        draft.base = "ddp"
        draft.notes.append("neither fsdp nor deepspeed: DDP, unless an accelerate configuration says otherwise")


def _batch(section: Section, draft: Draft) -> None:
    for key, name in _COUNTS:
        value = section.whole(key, 1, 2**20)
        if value is None:
            continue
        theirs = draft.values.get(name)
        if theirs and theirs.given and theirs.value not in (AUTO, value):
            raise section.contradiction(
                key, f"{value} differs from {theirs.where} {theirs.value}, which the Trainer refuses; write 'auto'"
            )
        draft.field(name, section.found(key, value))
    if section.flag("auto_find_batch_size"):
        draft.notes.append("auto_find_batch_size: the batch shrinks until it fits; the estimate is for the one given")
    for key in keys.SEQ_LENS:
        if (length := section.whole(key, 1, 2**27)) is not None:
            draft.field("seq_len", section.found(key, length))
            break


def _precision(section: Section, draft: Draft) -> None:
    bf16, fp16 = section.flag("bf16", auto=True), section.flag("fp16", auto=True)
    if bf16 is True and fp16 is True:
        raise section.contradiction("fp16", "both bf16 and fp16 are true; keep one")
    if bf16 is not True and fp16 is not True:
        if AUTO in (bf16, fp16) and "precision" not in draft.values:
            draft.field("precision", section.found("bf16" if bf16 == AUTO else "fp16", AUTO))
        return
    key = "bf16" if bf16 is True else "fp16"
    theirs = draft.values.get("precision")
    if theirs and theirs.value != AUTO:
        if not str(theirs.value).startswith(key):
            raise section.contradiction(key, f"true, but {theirs.where} makes the run {theirs.value}; change one")
        return
    draft.field("precision", section.found(key, f"{key}-mixed"))


def _optimizer(section: Section, draft: Draft) -> None:
    name = section.word("optim", (*keys.OPTIMIZERS, *keys.OTHER_OPTIMIZERS), str.lower)
    if (norm := section.number("max_grad_norm")) is not None:
        draft.facts["gradient_clipping"] = section.found("max_grad_norm", norm)
    if name is None:
        return
    if "optimizer" in draft.values or "optimizer" in draft.gaps:  # DeepSpeed's block wins
        return section.ignore(draft, "optim", "the DeepSpeed configuration has an optimizer of its own")
    if name not in keys.OPTIMIZERS:
        draft.gaps["optimizer"] = f"optim {name} is not modelled; give --optimizer with the nearest one"
        return
    made = keys.OPTIMIZERS[name]
    if made == "sgd" and "momentum=" in str(section.raw("optim_args") or "").replace(" ", ""):
        made = "sgd-momentum"
    draft.field("optimizer", section.found("optim", made))


def _checkpointing(section: Section, draft: Draft) -> None:
    """``activation_checkpointing`` since 5.24, ``gradient_checkpointing`` before; the new name wins."""
    new, old = section.flag("activation_checkpointing"), section.flag("gradient_checkpointing")
    on, key = (new, "activation_checkpointing") if new is not None else (old, "gradient_checkpointing")
    if "checkpointing" in draft.values:  # fsdp_config's own
        if on:
            raise section.contradiction(key, "excludes fsdp_config.activation_checkpointing; keep that one")
        return
    options = section.section(f"{key}_kwargs")
    section.raw("activation_checkpointing_kwargs"), section.raw("gradient_checkpointing_kwargs")
    if on is False:
        draft.field("checkpointing", section.found(key, "none"))
    elif on:
        every = (options.whole("every_n_layers", 1, 2**16) if options else None) or 1
        if every > 2:
            draft.gaps["checkpointing"] = f"checkpointing of every {every}th layer is not modelled"
        if options and options.flag("offload"):
            draft.field("checkpointing", options.found("offload", "offload"))
        elif options and every > 1:
            draft.field("checkpointing", options.found("every_n_layers", "every-2"))
        else:
            draft.field("checkpointing", section.found(key, "full"))


def _model_side(section: Section, draft: Draft) -> None:
    compiled = section.flag("torch_compile")
    for key in ("torch_compile_backend", "torch_compile_mode"):  # either turns it on
        if section.word(key) and not compiled:
            compiled = True
            draft.field("compile", section.found(key, True))
    if compiled is not None and "compile" not in draft.values:
        draft.field("compile", section.found("torch_compile", compiled))
    liger, options = section.flag("use_liger_kernel"), section.section("liger_kernel_config")
    if liger and not (options and options.flag("fused_linear_cross_entropy") is False):
        draft.field("loss", section.found("use_liger_kernel", "fused"))
    if section.flag("activation_offloading"):
        draft.gaps["checkpointing"] = "activation_offloading is not modelled; give --checkpointing offload"


def _ddp(section: Section, draft: Draft) -> None:
    for key, name in keys.DDP.items():
        if key not in section:
            continue
        value = section.knob(key, _DDP_KNOBS[name])
        if draft.base == "ddp":
            draft.option(name, section.found(key, value))
        else:
            section.ignore(draft, key, "DDP only")
    accelerator = section.raw("accelerator_config")
    inner = section.section("accelerator_config") if not isinstance(accelerator, str) else None
    options = inner.section("gradient_accumulation_kwargs") if inner else None
    if options and (sync := options.flag("sync_each_batch")) is not None and not draft.base.startswith("zero"):
        draft.option("sync_each_batch", options.found("sync_each_batch", sync))
    if section.raw("parallelism_config"):
        draft.gaps["strategy"] = "parallelism_config of the Trainer is not modelled"


def _elsewhere(section: Section, draft: Draft) -> None:
    for key, full in keys.METHOD_KEYS.items():
        if key in section.data and section.raw(key) not in full:
            found = f"{key} {short(section.data[key])}"
            draft.gaps["method"] = f"{found} is not an argument of the Trainer; give --method (lora, qlora, ...)"
    for key, option in keys.ELSEWHERE.items():
        if key in section:
            draft.notes.append(f"{key} {short(section.data[key])} is not an argument of the Trainer; give {option}")


def _defaults(section: Section, draft: Draft, stack: str) -> None:
    """What a whole file leaves unsaid; a part (the rest stands on a command line) leaves it open."""
    if not any(key in section.data for key in keys.WHOLE):
        return
    for name, (key, value) in keys.DEFAULTS.get(stack, {}).items():
        known = draft.values.get(name)
        if name in draft.gaps or (known is not None and known.value != AUTO):
            continue
        draft.field(name, section.found(key, value, given=False))
    if draft.values.get("precision") and draft.values["precision"].value == "fp32":
        draft.notes.append(
            "neither bf16 nor fp16: the run computes in the dtype that the weights were loaded in, which "
            "transformers 5 takes from the checkpoint; fp32 is assumed (give --precision bf16 where it is that)"
        )
