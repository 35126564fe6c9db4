"""Section B, DeepSpeed under the Trainer and accelerate. Checked against transformers 5.24 and accelerate 1.15."""

from __future__ import annotations

from estimators.readers.accelerate import _ONLY_WITHOUT_FILE as ONLY_WITHOUT_FILE
from estimators.readers.reading import AUTO
from estimators.units import gib
from selector.checks.block import as_number
from selector.checks.registry import ERROR, RUN, SOURCE, WARNING, Hits, rule
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
INLINE = frozenset(
    (
        *ONLY_WITHOUT_FILE,
        "zero3_init_flag",
        "deepspeed_config_file",
        "deepspeed_moe_layer_cls_names",
        "deepspeed_multinode_launcher",
        "deepspeed_hostfile",
        "deepspeed_exclusion_filter",
        "deepspeed_inclusion_filter",
    )
)


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
    confirmed=RUN,
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
    if setup.deciding.whole("zero_stage") == 3 and not setup.deciding.flag("zero3_save_16bit_model"):
        edit = setup.deciding.put("zero3_save_16bit_model", True)
        yield setup.deciding.hit("zero3_save_16bit_model", "is not true at stage 3: a save holds shards only", edit)


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
            yield setup.inline.hit(
                "zero3_init_flag",
                f"false: {setup.cluster.gpus_per_node} ranks load {gib(copies, 0)} GiB, "
                f"the host has {gib(setup.host_bytes, 0)}",
                setup.inline.put("zero3_init_flag", True),
            )


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
