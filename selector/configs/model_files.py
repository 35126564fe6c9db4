"""The model as scripts name it: where its weights are, which class loads it, and its config.json."""

from __future__ import annotations

import json
import os
from typing import Any

from estimators.errors import NotModelled
from estimators.model import catalogue
from estimators.model.spec import ModelSpec

# Ending of the class name -> (auto class, peft's task type).
TASKS = {
    "ForCausalLM": ("AutoModelForCausalLM", "CAUSAL_LM"),
    "LMHeadModel": ("AutoModelForCausalLM", "CAUSAL_LM"),
    "ForMaskedLM": ("AutoModelForMaskedLM", "FEATURE_EXTRACTION"),
    "ForConditionalGeneration": ("AutoModelForImageTextToText", "CAUSAL_LM"),
}
SEQ2SEQ = ("t5", "mt5", "umt5", "bart", "mbart", "pegasus")


def source_of(model: ModelSpec) -> str:
    """A hub id, or the folder that the model was read from; ``model`` is the folder with its config."""
    entry = catalogue.find(model.name)
    if entry is not None and entry.hf_id:
        return entry.hf_id
    source = model.source.removesuffix("config.json").rstrip(os.sep)
    if source and os.path.isdir(source):
        return os.path.abspath(source)
    is_id = model.name.count("/") == 1 and not model.name.startswith((".", "/", "~")) and " " not in model.name
    return model.name if is_id else "model"


def _task(model: ModelSpec) -> tuple[str, str]:
    if model.config.get("model_type") in SEQ2SEQ:
        return "AutoModelForSeq2SeqLM", "SEQ_2_SEQ_LM"
    for ending, task in TASKS.items():
        if model.class_name.endswith(ending):
            return task
    raise NotModelled(
        f"{model.name} ({model.class_name}) is no language model: the scripts' data is tokens; estimate and convert "
        "work, and deepspeed_config() and accelerate_config() give the engine's file"
    )


def auto_class(model: ModelSpec) -> str:
    """The transformers class that loads it. Raises ``NotModelled`` for what does not read tokens."""
    return _task(model)[0]


def task_type(model: ModelSpec) -> str:
    return _task(model)[1]


def config_json(model: ModelSpec) -> str:
    """The model's own config: its shapes, for ``--random-weights``."""
    config: dict[str, Any] = dict(model.config)
    config.setdefault("architectures", [model.class_name])
    return json.dumps(config, indent=2, ensure_ascii=False, default=list) + "\n"
