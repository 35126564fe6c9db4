"""One row a stack: what it does where the user says nothing.

Each value was read in the package named in ``source``; the tests read the installed ones again.
"""

from __future__ import annotations

from collections.abc import Mapping

from estimators.knobs import Value
from estimators.values import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Defaults of one stack.

    ``engines`` it can drive. ``trainer``: built on transformers' Trainer (its optimizers, its peft handling).
    ``accelerate``: accelerate prepares the model (upcasting, FSDP wrapping and mixed precision, fp32 outputs).
    ``fsdp_reduce``: dtype of FSDP's gradient reduction in mixed precision, ``compute`` or ``fp32``.
    ``frozen_fp32``: mixed precision keeps even frozen parameters in fp32. ``mixed``: it has mixed precision at all.
    ``wrap``: units of FSDP2; ``reshard_root``, ``reshard_tail``: whether the root unit, and the head where it is a
    unit of its own, are resharded after forward like the blocks. ``adapters_apart``: FSDP1 wraps trained leaves of a
    frozen block one by one (peft's policy), and not blocks alone.
    ``syncs``: engines that it reduces in every micro-step when gradients accumulate. ``zero``: the family of its
    DeepSpeed configuration, a key of ``estimators.stacks.deepspeed``. ``ddp``, ``fsdp1``: knobs that it sets.
    """

    package: str
    optimizer: str
    engines: tuple[str, ...]
    trainer: bool = False
    accelerate: bool = False
    fsdp_reduce: str = "compute"
    frozen_fp32: bool = False
    mixed: bool = True
    kbit_prepare: bool = False
    wrap: str = "blocks"
    reshard_root: bool = True
    reshard_tail: bool = True
    adapters_apart: bool = True
    syncs: tuple[str, ...] = ()
    zero: str = ""
    ddp: Mapping[str, Value] = field(default_factory=dict)
    fsdp1: Mapping[str, Value] = field(default_factory=dict)
    source: str = ""


_ALL = ("torch", "ddp", "fsdp1", "fsdp2", "deepspeed")
_TORCH = ("torch", "ddp", "fsdp1", "fsdp2")
# transformers/training_args.py (_process_fsdp_args): NO_PREFETCH, use_orig_params true unless the user says otherwise.
_HF_FSDP1: Mapping[str, Value] = {"backward_prefetch": "none", "use_orig_params": True}


def _hugging_face(package: str, source: str, **different: object) -> Stack:
    values: dict[str, object] = {
        "package": package, "optimizer": "adamw-fused", "engines": _ALL, "trainer": True, "accelerate": True,
        "wrap": "blocks+embedding+head", "reshard_root": False, "reshard_tail": False, "zero": "auto",
        "fsdp1": _HF_FSDP1, "source": source,
    }  # fmt: skip
    return Stack(**{**values, **different})  # type: ignore[arg-type]


STACKS: Mapping[str, Stack] = {
    "trainer": _hugging_face("transformers", "transformers/training_args.py, trainer.py, integrations/deepspeed.py"),
    "trl": _hugging_face("trl", "trl/trainer/sft_config.py, sft_trainer.py"),
    "swift": _hugging_face("ms-swift", "swift/config/zero*.json, swift/tuners/peft.py", zero="swift"),
    "llamafactory": _hugging_face(
        "llamafactory", "llamafactory/model/adapter.py, examples/deepspeed/ds_z*_config.json", zero="llamafactory"
    ),
    "axolotl": _hugging_face(
        "axolotl", "axolotl/loaders/model.py, deepspeed_configs/*.json", zero="axolotl", kbit_prepare=True
    ),
    "accelerate": _hugging_face(
        "accelerate", "accelerate/utils/dataclasses.py, fsdp_utils.py, accelerator.py",
        optimizer="adamw", trainer=False, zero="plugin",
    ),
    "deepspeed": Stack(
        package="deepspeed", optimizer="adamw", engines=_ALL, zero="engine", fsdp_reduce="fp32",
        source="deepspeed/runtime/config.py, zero/config.py",
    ),
    "torch": Stack(
        package="torch", optimizer="adamw", engines=_ALL, zero="engine", fsdp_reduce="fp32",
        source="torch/distributed/fsdp, torch/nn/parallel/distributed.py",
    ),
    "torchtitan": Stack(
        package="torchtitan", optimizer="adamw-fused", engines=_TORCH, fsdp_reduce="fp32", wrap="blocks+embedding+head",
        reshard_root=False, reshard_tail=False, syncs=("fsdp1", "fsdp2"),
        source="torchtitan/config/configs.py, distributed/fsdp.py",
    ),
    "torchtune": Stack(
        package="torchtune", optimizer="adamw-fused", engines=_TORCH, mixed=False, fsdp_reduce="fp32",
        wrap="blocks+embedding+head", syncs=("fsdp1", "fsdp2"), fsdp1={"use_orig_params": True},
        source="torchtune/training/_distributed.py, recipes/configs (custom_sharded_layers)",
    ),
    "litgpt": Stack(
        package="litgpt", optimizer="adamw", engines=_TORCH, frozen_fp32=True, fsdp1={"use_orig_params": True},
        adapters_apart=False, source="litgpt/finetune/full.py, lora.py; lightning FSDPPrecision",
    ),
    "composer": Stack(
        package="mosaicml", optimizer="adamw", engines=_TORCH, fsdp_reduce="fp32", frozen_fp32=True,
        syncs=("fsdp1", "fsdp2"), fsdp1={"backward_prefetch": "post", "use_orig_params": True},
        source="composer/utils/parallelism.py, distributed/mosaic_parallelism.py",
    ),
}  # fmt: skip
