"""LLaMA-Factory: one YAML with the arguments of llamafactory/hparams (0.9.5), and a dataset_info.json.

Stage ``pt`` trains on plain text and fills every sequence; change ``stage`` and the dataset for conversations.
"""

from __future__ import annotations

import json
from typing import Any

from estimators.memory import Estimate
from estimators.run import Run
from selector.configs import accelerate, hugging_face, hyper, refusal, samples
from selector.configs.launch import Start, accelerate_start, with_variables
from selector.configs.model_files import source_of
from selector.configs.script import lora_targets
from selector.configs.yaml_text import dump

ATTENTION = {"eager": "disabled", "sdpa": "sdpa", "flash": "fa2"}
LAST_BLOCKS = 2  # freeze_trainable_layers: what method freeze means without names
DROPPED = ("gradient_checkpointing", "gradient_checkpointing_kwargs", "use_liger_kernel", "liger_kernel_config")


def arguments(run: Run) -> dict[str, Any]:
    """The YAML as plain data. Raises ``IllegalCombination`` for what LLaMA-Factory has no word for."""
    hugging_face.check(run, "LLaMA-Factory's YAML")
    work = run.workload
    if work.loss != "plain":
        raise refusal.refuse(
            run, "enable_liger_kernel replaces norms, rotary embedding and MLP too", "give --loss plain"
        )
    made = {name: value for name, value in hugging_face.training(run).items() if name not in DROPPED}
    return {
        "model_name_or_path": source_of(run.model),
        "trust_remote_code": run.model.shapes == "formula",
        "flash_attn": ATTENTION[run.attention],
        "disable_gradient_checkpointing": work.checkpointing == "none",
        "use_reentrant_gc": False,
        "stage": "pt",
        "do_train": True,
        **_method(run),
        "dataset": "train",
        "dataset_dir": "data",
        "cutoff_len": work.seq_len,
        "pure_bf16": _pure(run),
        **made,
    }


def _pure(run: Run) -> bool:
    """16-bit weights and states: LLaMA-Factory lifts trained weights to fp32 unless told so (model/adapter.py)."""
    if run.workload.precision.endswith("-mixed") or run.workload.precision == "fp32":
        return False
    if run.workload.precision == "fp16" or run.strategy.stage == 3:
        raise refusal.refuse(run, f"pure_bf16 does not go with {run.workload.precision} or ZeRO-3", "give bf16-mixed")
    return True


def _method(run: Run) -> dict[str, Any]:
    work = run.workload
    if work.method == "full":
        return {"finetuning_type": "full"}
    if work.method == "freeze":
        if work.freeze:
            raise refusal.refuse(run, "LLaMA-Factory names the blocks that train, not modules that do not")
        return {"finetuning_type": "freeze", "freeze_trainable_layers": LAST_BLOCKS}
    targets = lora_targets(run)
    names = targets if isinstance(targets, str) else ",".join(targets)
    made: dict[str, Any] = {
        "finetuning_type": "lora", "lora_rank": work.lora_rank,
        "lora_alpha": hyper.LORA_ALPHA_PER_RANK * work.lora_rank, "lora_dropout": 0.0,
        "lora_target": "all" if names == "all-linear" else names,
    }  # fmt: skip
    if work.modules_to_save:
        made["additional_target"] = ",".join(work.modules_to_save)
    if work.method == "dora":
        made["use_dora"] = True
    if work.method == "qlora":
        made |= {"quantization_method": "bnb", "quantization_bit": 8 if work.quant == "int8" else 4}
        if work.quant != "int8":
            made |= {"quantization_type": "nf4", "double_quantization": work.quant == "nf4-double"}
    return made


def target(estimate: Estimate) -> tuple[dict[str, str], Start]:
    """The files and the command: torchrun inside llamafactory-cli, or accelerate for FSDP."""
    run = estimate.run
    info = {"train": {"file_name": "train.jsonl", "columns": {"prompt": "text"}}}
    made = {
        "llamafactory.yaml": dump(arguments(run)),
        "data/dataset_info.json": json.dumps(info, indent=2) + "\n",
        **hugging_face.deepspeed_file(run),
        **samples.files(run, hyper.SEED, hyper.STEPS),
    }
    if run.strategy.engine in ("fsdp1", "fsdp2"):
        made["accelerate.yaml"] = dump(accelerate.config(run))
        script = ("-m", "llamafactory.launcher", "llamafactory.yaml")
        return made, accelerate_start(script, samples.MAKE, resumes=False)
    return made, with_variables(
        run, ("llamafactory-cli", "train", "llamafactory.yaml"), samples.MAKE, FORCE_TORCHRUN="1"
    )
