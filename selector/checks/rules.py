"""Imports every section, so that ``RULES`` is complete; sections in the order in which they are documented."""

from __future__ import annotations

from selector.checks import (
    arguments,
    capacity,
    deepspeed,
    deepspeed_buckets,
    deepspeed_offload,
    deepspeed_precision,
    deepspeed_zero,
    fsdp1,
    fsdp1_loading,
    fsdp1_peft,
    fsdp2,
    fsdp2_loop,
    hardware,
    hf_deepspeed,
    hf_models,
    trainer,
    trainer_cost,
)
from selector.checks.registry import RULES

SECTIONS = {
    "A. DeepSpeed JSON": (deepspeed, deepspeed_precision, deepspeed_zero, deepspeed_buckets, deepspeed_offload),
    "B. DeepSpeed under the Trainer and accelerate": (hf_deepspeed, hf_models),
    "C. FSDP1": (fsdp1, fsdp1_peft, fsdp1_loading),
    "D. FSDP2": (fsdp2, fsdp2_loop),
    "E. Arguments of DDP and FSDP": (arguments,),
    "F. TrainingArguments, PEFT, trainers": (trainer, trainer_cost),
    "G. Hardware, environment, capacity": (hardware, capacity),
}
# Beside the collected rules; the first three are found while files are read, not by a function.
BESIDE = {
    "refused-value": "A value that the engine's own parser refuses, or values that exclude each other.",
    "misspelt-key": "A key that nothing reads and that is close to one that is known; accelerate refuses the file.",
    "named-file": "A file that a configuration names and that is not there: what it says is not checked.",
    "does-not-fit": "The estimate of the configuration is more than the GPU has.",
}

__all__ = ["BESIDE", "RULES", "SECTIONS"]
