"""Section A, rules of precision and of the optimizer. Checked against deepspeed 0.19.8."""

from __future__ import annotations

from estimators.readers import deepspeed_keys as keys
from selector.checks.deepspeed_words import TESTED
from selector.checks.registry import ERROR, INFO, RUN, SOURCE, THREAD, WARNING, Hits, rule
from selector.checks.setup import Setup


@rule(
    "ds-fp16-bf16-both",
    ERROR,
    fix="keep one: bf16 where the card has it",
    confirmed=RUN,
    source="Arctic-Platform PR78, DeepSpeed runtime/config.py",
)
def fp16_and_bf16(setup: Setup) -> Hits:
    """fp16.enabled and bf16.enabled are both true: assert while the file is read."""
    key = "bf16" if "bf16" in setup.ds else "bfloat16"
    if setup.ds.flag("fp16.enabled") and setup.ds.flag(f"{key}.enabled"):
        old_card = setup.capability is not None and setup.capability < 8
        drop = f"{key}.enabled" if old_card else "fp16.enabled"
        yield setup.ds.hit("fp16.enabled", f"fp16 and {key} are both enabled", setup.ds.put(drop, False))


@rule(
    "ds-legacy-bfloat16-key",
    WARNING,
    fix="rename the block to bf16",
    confirmed=RUN,
    source="LLaMA-Factory#2065, gpt-neox PR786",
)
def legacy_bfloat16(setup: Setup) -> Hits:
    """The block is called bfloat16: it is read only where no bf16 block is, and Hugging Face does not look at it."""
    if "bfloat16" not in setup.ds:
        return
    if "bf16" in setup.ds:
        mine, old = setup.ds.get("bf16.enabled"), setup.ds.get("bfloat16.enabled")
        if mine != old:
            yield setup.ds.hit(
                "bfloat16", f"bfloat16.enabled {old} is not read: bf16.enabled {mine} wins", setup.ds.drop("bfloat16")
            )
    else:
        edits = (setup.ds.put("bf16", setup.ds.get("bfloat16")), setup.ds.drop("bfloat16"))
        yield setup.ds.hit("bfloat16", "old name of bf16", *edits)


@rule(
    "ds-bf16-stage0",
    WARNING,
    fix="use stage 1",
    confirmed=THREAD,
    versions="deepspeed < 0.14",
    source="DeepSpeed PR5154",
)
def bf16_stage0(setup: Setup) -> Hits:
    """bf16 at stage 0 with accumulation: gradients were not kept between micro-steps."""
    if setup.older("deepspeed", "0.14") and setup.stage == 0 and setup.ds.flag("bf16.enabled") and setup.steps > 1:
        yield setup.ds.hit(
            "bf16.enabled",
            f"bf16 at stage 0 with accumulation {setup.steps} on DeepSpeed {setup.versions['deepspeed']}",
        )


@rule(
    "bf16-grad-accum",
    INFO,
    fix='"data_types": {"grad_accum_dtype": "fp32"}, and count its memory',
    confirmed=SOURCE,
    source="DeepSpeed#2768, DeepSpeed#2352, DeepSpeed#1800; runtime/engine.py",
)
def bf16_accumulation(setup: Setup) -> Hits:
    """bf16 with accumulation and no data_types.grad_accum_dtype: stages 2 and 3 add up in bf16."""
    if setup.ds.flag("bf16.enabled") and setup.steps > 1 and "data_types.grad_accum_dtype" not in setup.ds:
        more = f": fp32 adds 4 B x {setup.params / 1e9:.1f} B parameters" if setup.params and setup.stage == 1 else ""
        yield setup.ds.hit("data_types.grad_accum_dtype", f"{setup.steps} micro-steps are added up in bf16{more}")


@rule(
    "ds-bf16-master-flags",
    ERROR,
    fix="enable both, at stage 1 to 3",
    confirmed=RUN,
    source="DeepSpeed runtime/config.py",
)
def bf16_master_flags(setup: Setup) -> Hits:
    """bf16_optimizer_states without bf16_master_weights_and_grads, or either at stage 0: assert."""
    states, master = "bf16.bf16_optimizer_states", "bf16.bf16_master_weights_and_grads"
    if setup.ds.flag(states) and not setup.ds.flag(master):
        yield setup.ds.hit(states, "needs bf16_master_weights_and_grads as well", setup.ds.put(master, True))
    elif setup.stage == 0 and (setup.ds.flag(master) or setup.ds.flag(states)):
        yield setup.ds.hit(master, "needs ZeRO stage 1, 2 or 3; the file says 0")


@rule(
    "ds-amp-with-zero",
    ERROR,
    fix="remove amp; use fp16 or bf16",
    confirmed=RUN,
    source="DeepSpeed runtime/config.py",
    corrected="DeepSpeed 0.19.8 refuses the block alone as well.",
)
def amp_with_zero(setup: Setup) -> Hits:
    """amp with ZeRO, fp16 or bf16: assert; from DeepSpeed 0.19.7 the block is refused in any case."""
    if "amp" not in setup.ds:
        return
    gone = not setup.older("deepspeed", "0.19.7")
    clash = setup.ds.flag("amp.enabled") and (setup.stage or setup.ds.flag("fp16.enabled"))
    if gone or clash:
        says = f"gone from DeepSpeed {setup.versions['deepspeed']}" if gone else f"excludes ZeRO stage {setup.stage}"
        yield setup.ds.hit("amp", says, setup.ds.drop("amp"))


@rule(
    "onebit-with-zero",
    ERROR,
    fix="use AdamW",
    confirmed=SOURCE,
    source="DeepSpeed runtime/engine.py",
    corrected="The 1-bit optimizers are gone from DeepSpeed 0.19.8.",
)
def onebit_with_zero(setup: Setup) -> Hits:
    """OneBitAdam, ZeroOneAdam or OneBitLamb under ZeRO: assert."""
    name = setup.ds.word("optimizer.type")
    if name in keys.ONE_BIT and (setup.stage or not setup.older("deepspeed", "0.19.8")):
        edit = setup.ds.put("optimizer.type", "AdamW")
        says = (
            f"cannot run at stage {setup.stage}"
            if setup.stage
            else f"is gone from DeepSpeed {setup.versions['deepspeed']}"
        )
        yield setup.ds.hit("optimizer.type", f"{setup.ds.get('optimizer.type')} {says}", edit)


@rule(
    "ds-untested-optimizer",
    ERROR,
    fix='"zero_allow_untested_optimizer": true',
    confirmed=SOURCE,
    source="DeepSpeed runtime/zero/utils.py, runtime/engine.py; LLaMA-Factory#3493",
)
def untested_optimizer(setup: Setup) -> Hits:
    """ZeRO with an optimizer outside its tested list and zero_allow_untested_optimizer not true: assert."""
    name = setup.ds.get("optimizer.type")
    if not isinstance(name, str) or not setup.stage or setup.ds.flag("zero_allow_untested_optimizer"):
        return
    if name.lower() not in TESTED | keys.ONE_BIT and (
        name in keys.TORCH_OPTIMIZERS or name.lower() in keys.UNMODELLED_OPTIMIZERS
    ):
        edit = setup.ds.put("zero_allow_untested_optimizer", True)
        yield setup.ds.hit("optimizer.type", f"{name[:40]} is not on ZeRO's list of tested optimizers", edit)
