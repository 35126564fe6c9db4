"""What the stacks built on the Trainer have in common: refusals, dtypes, attention, the DeepSpeed file."""

from __future__ import annotations

import json
from typing import Any

from estimators.run import Run
from selector.configs import deepspeed, refusal, trainer

ATTENTION = {"eager": "eager", "sdpa": "sdpa", "flash": "flash_attention_2"}


def check(run: Run, where: str, checkpointings: tuple[str, ...] = ("none", "full")) -> None:
    """Raise for what none of them has a word for."""
    work = run.workload
    refusal.only_values(run, "checkpointing", checkpointings, where)
    refusal.own_dtypes(run, ("param_dtype",), where)
    refusal.only_values(run, "padding", ("none",), where)
    if work.optimizer_in_backward:
        raise refusal.refuse(run, f"{where} has no word for optimizer_in_backward")
    if work.method == "qlora" and work.quant == "gptq4":
        raise refusal.refuse(run, "quant gptq4 needs a checkpoint that was quantised before; no name of one is known")
    if run.strategy.engine == "ddp":
        refusal.only_options(run, trainer.SAYABLE_DDP, where)


def training(run: Run) -> dict[str, Any]:
    """The arguments that are TrainingArguments' own, under the names of transformers 4 and 5 alike."""
    made = trainer.arguments(run)
    renamed = {name.replace("activation_checkpointing", "gradient_checkpointing"): v for name, v in made.items()}
    return renamed


def deepspeed_file(run: Run) -> dict[str, str]:
    """``ds_config.json`` with ``auto``, where the engine is DeepSpeed."""
    if run.strategy.engine != "deepspeed":
        return {}
    return {"ds_config.json": json.dumps(deepspeed.hugging_face(run), indent=2) + "\n"}
