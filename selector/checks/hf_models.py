"""Section B, how models are loaded, quantised and resumed under stage 3. Checked against transformers 5.24."""

from __future__ import annotations

import os
import re

from estimators.units import gib
from selector.checks.registry import ERROR, SOURCE, THREAD, WARNING, Hits, rule
from selector.checks.script import ARGUMENT_CLASSES
from selector.checks.setup import Setup

# DeepSpeed key -> (argument of the Trainer, its default): HfTrainerDeepSpeedConfig.trainer_config_process.
_SHARD_FILE = re.compile(r"zero_pp_rank_(\d+)_mp_rank_\d+_optim_states\.pt")


@rule(
    "zero3-init-order",
    ERROR,
    fix="create the arguments first and keep them alive",
    confirmed=SOURCE,
    source="FAI-RL PR68, trl#4100, QwenLM/Qwen#755; transformers modeling_utils.py",
)
def init_order(setup: Setup) -> Hits:
    """The model is loaded before TrainingArguments or HfDeepSpeedConfig exists: every rank loads all of it."""
    makers = [
        c.line
        for c in setup.script.named(
            *ARGUMENT_CLASSES,
            "HfDeepSpeedConfig",
            "HfArgumentParser",
            "Accelerator",
            "parse_args_into_dataclasses",
            "TrlParser",
        )
    ]
    loads = [c for c in setup.script.named("from_pretrained", "from_config") if "Model" in c.path or "For" in c.path]
    if setup.stage == 3 and loads and makers and min(makers) > loads[0].line:
        size = f" ({gib(2 * setup.params, 0)} GiB a rank)" if setup.params else ""
        yield setup.script.hit(
            loads[0],
            "",
            f"{loads[0].path} on line {loads[0].line} comes before line {min(makers)}: "
            f"every rank loads the whole model{size}",
        )


@rule(
    "zero3-device-map",
    ERROR,
    fix="remove it",
    confirmed=SOURCE,
    source="peft#306, LLaMA-Factory#3949, QwenLM/Qwen PR833",
    corrected="low_cpu_mem_usage is no argument of transformers 5 any more and is ignored there.",
)
def device_map(setup: Setup) -> Hits:
    """from_pretrained with device_map (or, before transformers 5, low_cpu_mem_usage) at stage 3: ValueError."""
    old = setup.older("transformers", "5.0")
    for call in setup.script.named("from_pretrained"):
        for key in ("device_map", *(("low_cpu_mem_usage",) if old else ())):
            if setup.stage == 3 and call.kwargs.get(key) not in (None, False):
                yield setup.script.hit(call, key, f"{call.kwargs[key]!r} at stage 3")


@rule("bnb-8bit-zero3", ERROR, fix="4-bit, or bf16", confirmed=THREAD, source="peft#306")
def eight_bit(setup: Setup) -> Hits:
    """load_in_8bit at stage 3: integer weights cannot be partitioned."""
    if setup.bits == 8 and setup.stage == 3:
        yield setup.at_stage("stage 3 with a base model in 8 bit")


@rule(
    "zero3-qlora-versions",
    ERROR,
    fix="upgrade, or FSDP with QLoRA",
    confirmed=THREAD,
    versions="bitsandbytes < 0.43 or transformers < 4.41",
    source="transformers#24395, xtuner#88",
)
def qlora_versions(setup: Setup) -> Hits:
    """load_in_4bit at stage 3 on an old stack: the base is not sharded and lies whole on every GPU."""
    old = setup.older("transformers", "4.41") or setup.older("bitsandbytes", "0.43")
    if setup.bits == 4 and setup.stage == 3 and old:
        size = f" ({gib(0.55 * setup.params)} GiB)" if setup.params else ""
        yield setup.at_stage(f"the 4-bit base is replicated{size}: 0.55 B a parameter on every GPU")


@rule(
    "zero3-peft-nonreentrant",
    ERROR,
    fix="use_reentrant true, or a newer DeepSpeed",
    confirmed=THREAD,
    versions="deepspeed < 0.19.3",
    source="transformers#47254, DeepSpeed PR8148, DiffSynth#576",
)
def peft_nonreentrant(setup: Setup) -> Hits:
    """Frozen parameters and non-reentrant checkpointing at stage 3: CheckpointError, [n] against [0]."""
    options = setup.args.first("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
    reentrant = setup.args.flag(f"{options}.use_reentrant") if options else None
    default = setup.older("transformers", "5.0")  # version 5 checkpoints without reentry unless told
    affected = setup.older("deepspeed", "0.19.3") and setup.stage == 3 and setup.checkpoints
    if affected and setup.method in ("lora", "qlora", "freeze") and not (default if reentrant is None else reentrant):
        yield setup.at_stage(
            f"{setup.method} with non-reentrant checkpointing on DeepSpeed {setup.versions['deepspeed']}"
        )


@rule(
    "zero3-generate-synced",
    ERROR,
    fix="synced_gpus=True",
    confirmed=SOURCE,
    source="DeepSpeed#860, DeepSpeedExamples PR636; transformers generation/utils.py",
    corrected="transformers 5.24 turns it on by itself under stage 3 and FSDP: only an explicit False hangs.",
)
def generate_synced(setup: Setup) -> Hits:
    """generate(synced_gpus=False) at stage 3: ranks that finish first stop taking part, and the rest hang."""
    old = setup.older("transformers", "4.40")
    for call in setup.script.named("generate"):
        given = call.kwargs.get("synced_gpus")
        if setup.stage == 3 and (given is False or (old and given is None)):
            yield setup.script.hit(call, "synced_gpus", "is off at stage 3")


@rule(
    "trl-ds3-gather-false",
    WARNING,
    fix="true, or vLLM",
    confirmed=THREAD,
    source="trl#3858, trl PR1483, DeepSpeedExamples#718",
)
def gather_for_generation(setup: Setup) -> Hits:
    """Stage 3 with ds3_gather_for_generation false: generation gathers parameter by parameter, hours a step."""
    if setup.stage == 3 and setup.args.flag("ds3_gather_for_generation") is False and not setup.args.flag("use_vllm"):
        edit = setup.args.put("ds3_gather_for_generation", True)
        yield setup.args.hit("ds3_gather_for_generation", "is false at stage 3", edit)


@rule(
    "zero3-multimodal-branch",
    WARNING,
    fix="an image in every batch, or stage 2",
    confirmed=THREAD,
    source="DeepSpeed#7170",
)
def multimodal(setup: Setup) -> Hits:
    """A multimodal model sharded by stage 3 or FSDP: ranks whose batch has no image run other modules and hang."""
    if setup.model and setup.shards_params and {"vision", "audio"} & {part.role for part in setup.model.blocks}:
        message = f"{setup.model.name} has a branch that text-only batches skip"
        yield setup.fsdp.hit("version", message) if setup.fsdp else setup.at_stage(message)


@rule("accel-ds-multi-model", ERROR, fix="a plugin for each", confirmed=SOURCE, source="accelerate accelerator.py")
def several_models(setup: Setup) -> Hits:
    """Two models in one accelerator.prepare under DeepSpeed: AssertionError."""
    for call in setup.script.named("prepare"):
        names = [str(a) for a in call.args if isinstance(a, str) and "model" in a.lower()]
        if setup.deepspeed and len(names) > 1:
            yield setup.script.hit(call, "", f"prepares {' and '.join(names[:3])} together")


@rule(
    "deepspeed-min-version",
    ERROR,
    fix="upgrade DeepSpeed",
    confirmed=SOURCE,
    versions="deepspeed < 0.9.3",
    source="accelerate utils/dataclasses.py",
)
def minimum_version(setup: Setup) -> Hits:
    """DeepSpeed before 0.9.3, or before 0.14 with leaf modules named to accelerate: ImportError."""
    leaf = "deepspeed_moe_layer_cls_names" in setup.inline
    least = "0.14.0" if leaf else "0.9.3"
    if setup.deepspeed and setup.hf and setup.older("deepspeed", least):
        yield setup.at_stage(f"accelerate needs DeepSpeed {least}; you have {setup.versions['deepspeed']}")


@rule(
    "resume-world-size",
    WARNING,
    fix="a universal checkpoint, or zero_to_fp32 (the optimizer is lost)",
    confirmed=SOURCE,
    source="DeepSpeed#3810, DeepSpeed#2898, DeepSpeed#5405, Lightning#19585; runtime/engine.py",
)
def resume(setup: Setup) -> Hits:
    """The checkpoint to resume from was written by another number of GPUs: ZeRORuntimeException."""
    folder = setup.args.get("resume_from_checkpoint")
    if not isinstance(folder, str) or not setup.stage or not setup.world or len(folder) > 4000 or "\0" in folder:
        return
    ranks: set[int] = set()
    for root, _, files in os.walk(folder):
        ranks.update(int(m[1]) for m in map(_SHARD_FILE.fullmatch, files) if m)
        if len(ranks) > 10**5 or root.count(os.sep) - folder.count(os.sep) > 2:
            break
    if ranks and len(ranks) != setup.world and not setup.ds.flag("checkpoint.load_universal"):
        yield setup.args.hit("resume_from_checkpoint", f"was written by {len(ranks)} ranks and {setup.world} resume")
