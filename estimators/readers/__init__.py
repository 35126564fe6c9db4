"""An existing configuration -> what it says about ``Strategy`` and ``Workload``, with the place of each value.

    read_config("ds_config.json")        a DeepSpeed JSON, the YAML of ``accelerate config``, or TrainingArguments

The kind is recognised by content. A file that another one names is followed once. Nothing is imported from the
engines: each reader follows what its parser does, and the tests hold the two against each other.
"""

from __future__ import annotations

import os

from estimators.errors import InputError, short
from estimators.readers import trainer_keys
from estimators.readers.accelerate import read_accelerate
from estimators.readers.deepspeed import read_deepspeed
from estimators.readers.reading import AUTO, KINDS, Draft, Ignored, Reading, Value
from estimators.readers.safe import Document, load
from estimators.readers.section import Section
from estimators.readers.training_arguments import read_training_arguments

__all__ = ["AUTO", "KINDS", "Ignored", "Reading", "Value", "read_config", "recognise"]

_READERS = {
    "deepspeed": read_deepspeed,
    "accelerate": read_accelerate,
    "training_arguments": read_training_arguments,
}
# fsdp_config, use_cpu, debug and fp16 are keys of accelerate and of the Trainer, and mark neither.
_ACCELERATE_MARKS = {
    "distributed_type", "compute_environment", "deepspeed_config", "num_processes", "num_machines", "machine_rank",
}  # fmt: skip
_DEEPSPEED_MARKS = {
    "zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer",
}  # fmt: skip
_TRAINER_MARKS = {
    *trainer_keys.OTHER, *trainer_keys.DDP, "fsdp", "deepspeed", "per_device_train_batch_size", "optim",
    "gradient_accumulation_steps", "gradient_checkpointing", "activation_checkpointing", "bf16", "fp16",
    "torch_compile", "use_liger_kernel",
}  # fmt: skip


def read_config(path: str | os.PathLike[str], ranks: int | None = None) -> Reading:
    """Read a configuration file.

    ``ranks``, the number of GPUs where it is known, settles DeepSpeed's batch triangle; the file's own number of
    processes serves where it is None.

    Raises ``InputError`` (with file, line and key path) for a file that cannot be read and values that cannot be
    used, ``IllegalCombination`` for values that exclude each other, ``MissingDependency`` for YAML without PyYAML.
    What is legal and cannot be estimated is no error: it stands in ``Reading.gaps``.
    """
    document = load(path)
    kind = recognise(document)
    draft = Draft()
    section = Section(document, document.data)
    _READERS[kind](section, draft, ranks)
    reading = draft.finish(kind, document.path)
    if kind == "deepspeed" and reading.auto:
        place = reading.values[reading.auto[0]]
        draft.field("stack", Value("trainer", place.where, given=False))
        draft.notes.append("'auto' is filled by the Hugging Face Trainer or accelerate, from their own arguments")
        reading = draft.finish(kind, document.path)
    return reading


def recognise(document: Document) -> str:
    """``deepspeed``, ``accelerate`` or ``training_arguments``, by the keys. Raises ``InputError`` for anything else."""
    present = document.data.keys()
    if present & _ACCELERATE_MARKS:
        return "accelerate"
    half = [key for key in ("bf16", "fp16", "bfloat16") if isinstance(document.data.get(key), dict)]
    if present & _DEEPSPEED_MARKS or half:
        return "deepspeed"
    if present & _TRAINER_MARKS:
        return "training_arguments"
    keys = ", ".join(short(key, 30) for key in list(present)[:4])
    raise InputError(
        f"{document.name} has the keys {keys or 'of nothing'}: neither a DeepSpeed JSON (zero_optimization, "
        "train_micro_batch_size_per_gpu), an accelerate file (distributed_type) nor TrainingArguments "
        "(per_device_train_batch_size, fsdp, deepspeed)"
    )
