"""Section B, DeepSpeed under the Trainer and accelerate. Checked against transformers 5.24 and accelerate 1.15."""

from __future__ import annotations

import os
import re

from estimators.readers.accelerate import _ONLY_WITHOUT_FILE as ONLY_WITHOUT_FILE
from estimators.readers.reading import AUTO
from estimators.units import gib
from selector.checks.block import as_number
from selector.checks.registry import ERROR, RUN, SOURCE, THREAD, WARNING, Hits, rule
from selector.checks.script import ARGUMENT_CLASSES
from selector.checks.setup import Setup

# DeepSpeed key -> (argument of the Trainer, its default): HfTrainerDeepSpeedConfig.trainer_config_process.
SAME = {
    "train_micro_batch_size_per_gpu": ("per_device_train_batch_size", 8),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", 1),
    "gradient_clipping": ("max_grad_norm", 1.0),
    "optimizer.params.lr": ("learning_rate", 5e-5),
    "optimizer.params.eps": ("adam_epsilon", 1e-8),
    "optimizer.params.weight_decay": ("weight_decay", 0.0),
    "scheduler.params.warmup_max_lr": ("learning_rate", 5e-5),
    "scheduler.params.warmup_num_steps": ("warmup_steps", 0),
    "fp16.enabled": ("fp16", False),
    "bf16.enabled": ("bf16", False),
}
INLINE = frozenset((*ONLY_WITHOUT_FILE, "zero3_init_flag", "deepspeed_config_file", "deepspeed_moe_layer_cls_names",
                    "deepspeed_multinode_launcher", "deepspeed_hostfile", "deepspeed_exclusion_filter",
                    "deepspeed_inclusion_filter"))  # fmt: skip
_SHARD_FILE = re.compile(r"zero_pp_rank_(\d+)_mp_rank_\d+_optim_states\.pt")


@rule(
    "hf-ds-mismatch",
    ERROR,
    fix="'auto' in the JSON",
    confirmed=RUN,
    source="BELLE#154, MedicalGPT#288; transformers integrations/deepspeed.py",
    corrected="A value that the arguments leave out counts with the Trainer's default; scheduler values are compared "
    "when training starts.",
)
def mismatch(setup: Setup) -> Hits:
    """A number of the JSON differs from the Trainer's argument: ValueError that lists the mismatches."""
    if not setup.ds or not setup.args or "base_model" in setup.args:
        return
    for key, (name, default) in SAME.items():
        theirs, mine = setup.ds.get(key), setup.args.get(name)
        if theirs is None or theirs == AUTO or mine is None or mine == AUTO:
            continue
        a, b = as_number(theirs), as_number(mine)
        if (a != b) if a is not None and b is not None else (theirs != mine):
            edit = setup.ds.put(key, AUTO)
            yield setup.ds.hit(key, f"{theirs} and the Trainer's {name} is {mine} (default {default})", edit)
    yield from _betas(setup)
    yield from _train_batch(setup)


def _betas(setup: Setup) -> Hits:
    betas = setup.ds.get("optimizer.params.betas")
    mine = [setup.args.number("adam_beta1"), setup.args.number("adam_beta2")]
    if isinstance(betas, list) and None not in mine and betas != mine:
        edit = setup.ds.put("optimizer.params.betas", AUTO)
        yield setup.ds.hit("optimizer.params.betas", f"{betas} and the Trainer's are {mine}", edit)


def _train_batch(setup: Setup) -> Hits:
    train = setup.ds.whole("train_batch_size")
    micro = setup.count("per_device_train_batch_size")
    if train and micro and setup.world:
        wanted = micro * (setup.count("gradient_accumulation_steps") or 1) * setup.world
        if train != wanted:
            edit = setup.ds.put("train_batch_size", AUTO)
            yield setup.ds.hit("train_batch_size", f"{train} and the Trainer's is {wanted} on {setup.world} GPUs", edit)


@rule(
    "ds-batch-missing-gas", ERROR, fix='"gradient_accumulation_steps": "auto"', confirmed=SOURCE, source="codealpaca#14"
)
def missing_accumulation(setup: Setup) -> Hits:
    """The JSON has train_batch_size and no gradient_accumulation_steps while the Trainer accumulates: the batch
    assertion fails."""
    steps = setup.count("gradient_accumulation_steps") or 1
    if setup.ds and "train_batch_size" in setup.ds and steps > 1 and "gradient_accumulation_steps" not in setup.ds:
        edit = setup.ds.put("gradient_accumulation_steps", AUTO)
        yield setup.ds.hit("gradient_accumulation_steps", f"is absent and the Trainer accumulates {steps} steps", edit)


@rule(
    "accel-ds-file-and-inline",
    ERROR,
    fix="keep them in the JSON only",
    confirmed=SOURCE,
    source="accelerate#3197; accelerate utils/dataclasses.py",
)
def file_and_inline(setup: Setup) -> Hits:
    """deepspeed_config_file and, beside it, values that would be ignored: ValueError."""
    if "deepspeed_config_file" not in setup.inline:
        return
    for key in ONLY_WITHOUT_FILE:
        if key in setup.inline.data:
            yield setup.inline.hit(key, "stands beside deepspeed_config_file", setup.inline.drop(key))
    if "mixed_precision" in setup.accel.data:
        edit = setup.accel.drop("mixed_precision")
        yield setup.accel.hit("mixed_precision", "stands beside deepspeed_config_file", edit)


@rule(
    "accel-unknown-key",
    WARNING,
    fix="move them to a file named by deepspeed_config_file",
    confirmed=SOURCE,
    source="LLaMA-Factory#253, MOSS#272; accelerate commands/launch.py",
)
def unknown_inline(setup: Setup) -> Hits:
    """A key of DeepSpeed's own JSON inside deepspeed_config: nobody reads it."""
    for key in setup.inline.data:
        if key not in INLINE and setup.accel.word("distributed_type") == "deepspeed":
            yield setup.inline.hit(key, "is not read by accelerate", setup.inline.drop(key))


@rule("accel-zero3-save-16bit", WARNING, fix="true", confirmed=SOURCE, source="transformers#20082, peft#306")
def save_16bit(setup: Setup) -> Hits:
    """zero_stage 3 and zero3_save_16bit_model not true: a save cannot be used."""
    if setup.inline.whole("zero_stage") == 3 and not setup.inline.flag("zero3_save_16bit_model"):
        edit = setup.inline.put("zero3_save_16bit_model", True)
        yield setup.inline.hit("zero3_save_16bit_model", "is not true at stage 3: a save holds shards only", edit)


@rule(
    "accel-zero3-init-flag",
    WARNING,
    fix="true at stage 3, false below",
    confirmed=SOURCE,
    source="accelerate utils/dataclasses.py",
)
def init_flag(setup: Setup) -> Hits:
    """zero3_init_flag below stage 3 is forced off; off at stage 3, every rank loads the whole model."""
    flag = setup.inline.flag("zero3_init_flag")
    if flag and setup.stage is not None and setup.stage < 3:
        edit = setup.inline.put("zero3_init_flag", False)
        yield setup.inline.hit("zero3_init_flag", f"true at stage {setup.stage} is forced off", edit)
    if flag is False and setup.stage == 3 and setup.params and setup.host_bytes and setup.cluster:
        copies = 2 * setup.params * setup.cluster.gpus_per_node
        if copies > setup.host_bytes:
            yield setup.inline.hit("zero3_init_flag", f"false: {setup.cluster.gpus_per_node} ranks load {gib(copies, 0)} GiB, "
                                   f"the host has {gib(setup.host_bytes, 0)}", setup.inline.put("zero3_init_flag", True))  # fmt: skip


@rule("accel-gas-auto", WARNING, fix="a number", confirmed=SOURCE, source="accelerate accelerator.py")
def accumulation_auto(setup: Setup) -> Hits:
    """gradient_accumulation_steps is 'auto' and the loop is accelerate's own without that argument: it becomes 1."""
    accelerators = list(setup.script.named("Accelerator"))
    if setup.ds.get("gradient_accumulation_steps") != AUTO or not accelerators or setup.args:
        return
    passed = any(
        "gradient_accumulation_steps" in call.kwargs or "deepspeed_plugin" in call.kwargs for call in accelerators
    )
    if not passed:
        yield setup.ds.hit(
            "gradient_accumulation_steps", "'auto', and Accelerator() is not given a number: it becomes 1"
        )


@rule(
    "zero3-init-order",
    ERROR,
    fix="create the arguments first and keep them alive",
    confirmed=SOURCE,
    source="FAI-RL PR68, trl#4100, QwenLM/Qwen#755; transformers modeling_utils.py",
)
def init_order(setup: Setup) -> Hits:
    """The model is loaded before TrainingArguments or HfDeepSpeedConfig exists: every rank loads all of it."""
    makers = [c.line for c in setup.script.named(*ARGUMENT_CLASSES, "HfDeepSpeedConfig", "HfArgumentParser", "Accelerator",
                                                 "parse_args_into_dataclasses", "TrlParser")]  # fmt: skip
    loads = [c for c in setup.script.named("from_pretrained", "from_config") if "Model" in c.path or "For" in c.path]
    if setup.stage == 3 and loads and makers and min(makers) > loads[0].line:
        size = f" ({gib(2 * setup.params, 0)} GiB a rank)" if setup.params else ""
        yield setup.script.hit(loads[0], "", f"{loads[0].path} on line {loads[0].line} comes before line {min(makers)}: "
                                             f"every rank loads the whole model{size}")  # fmt: skip


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
