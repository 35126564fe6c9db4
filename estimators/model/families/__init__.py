"""Family formulas: from a Hugging Face style config to the shapes of its network.

A family is a module with ``DEFAULTS`` (what the transformers config class assumes for absent keys) and
``build(config) -> ModelSpec``. Only the module of the family in use is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from estimators.errors import InputError, NotModelled, UnknownName, short
from estimators.model.families.common import Config
from estimators.model.spec import ModelSpec

# model_type -> module in this package
FAMILIES: dict[str, str] = {
    # decoder-only, dense
    "apertus": "apertus",
    "arcee": "arcee",
    "bloom": "bloom",
    "codegen": "codegen",
    "cohere": "cohere",
    "cohere2": "cohere2",
    "ernie4_5": "ernie4_5",
    "exaone": "exaone",
    "exaone4": "exaone4",
    "falcon": "falcon",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3_text",
    "glm": "glm",
    "glm4": "glm4",
    "gpt2": "gpt2",
    "gpt_bigcode": "gpt_bigcode",
    "gpt_neo": "gpt_neo",
    "gpt_neox": "gpt_neox",
    "gptj": "gptj",
    "granite": "granite",
    "helium": "helium",
    "hunyuan_v1_dense": "hunyuan_v1_dense",
    "internlm3": "internlm3",
    "iquestcoder": "iquestcoder",
    "jais2": "jais2",
    "llama": "llama",
    "ministral": "ministral",
    "ministral3": "ministral3",
    "mistral": "mistral",
    "mpt": "mpt",
    "nemotron": "nemotron",
    "olmo": "olmo",
    "olmo2": "olmo2",
    "olmo3": "olmo3",
    "opt": "opt",
    "phi": "phi",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
    # decoder-only, dense, code on the hub
    "baichuan": "baichuan",
    "chatglm": "chatglm",
    "internlm": "internlm",
    "internlm2": "internlm2",
    "minicpm": "minicpm",
    "qwen": "qwen",
    # mixtures of experts
    "mixtral": "mixtral",
    "qwen2_moe": "qwen2_moe",
    "qwen3_moe": "qwen3_moe",
    "qwen3_next": "qwen3_next",
    "deepseek_v2": "deepseek_v2",
    "deepseek_v3": "deepseek_v3",
    "glm4_moe": "glm4_moe",
    "olmoe": "olmoe",
    "granitemoe": "granitemoe",
    "phimoe": "phimoe",
    "gpt_oss": "gpt_oss",
    "llama4_text": "llama4_text",
    # encoders, encoder-decoders, vision, audio
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "xlm_roberta",
    "distilbert": "distilbert",
    "electra": "electra",
    "deberta-v2": "deberta_v2",
    "modernbert": "modernbert",
    "t5": "t5",
    "mt5": "mt5",
    "umt5": "umt5",
    "bart": "bart",
    "mbart": "bart",
    "pegasus": "bart",
    "whisper": "whisper",
    "vit": "vit",
    "deit": "vit",
    "dinov2": "dinov2",
    # vision-language
    "clip": "clip",
    "siglip": "siglip",
    "llava": "llava",
    "llava_next": "llava",
    "mistral3": "mistral3",
    "gemma3": "gemma3",
    "paligemma": "paligemma",
    "idefics3": "idefics3",
    "smolvlm": "idefics3",
    "internvl": "internvl",
    "mllama": "mllama",
    "qwen2_vl": "qwen2_vl",
    "qwen2_5_vl": "qwen2_5_vl",
    "qwen3_vl": "qwen3_vl",
}


class UnknownFamily(UnknownName, NotModelled):
    """A ``model_type`` that has no formula here; transformers may still know it."""


def build(config: Mapping[str, Any], where: str = "config") -> ModelSpec:
    """The network that ``config`` describes, with its language-modelling head. ``where`` opens each error message.

    Raises ``InputError`` for a config that contradicts itself, ``NotModelled`` for a family or head class without a
    formula (a caller can then ask transformers).
    """
    if not isinstance(config, Mapping):
        raise InputError(f"{where} is {short(config)}; give an object with model_type and the sizes")
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise InputError(f"{where}: model_type is {short(model_type)}; give a name such as 'llama'")
    if model_type not in FAMILIES:
        raise UnknownFamily("model_type", model_type, FAMILIES, "(its shapes can be read from transformers instead)")
    family = import_module(f"{__name__}.{FAMILIES[model_type]}")
    spec: ModelSpec = family.build(Config(config, family.DEFAULTS, where))
    _require_head(config, {spec.class_name, *getattr(family, "ALSO_NAMED", ())}, spec.class_name, where)
    return spec


def _require_head(config: Mapping[str, Any], modelled: set[str], class_name: str, where: str) -> None:
    """The formulas have one head class each; another one changes the parameters."""
    architectures = config.get("architectures")
    if not architectures:
        return
    if not isinstance(architectures, list | tuple) or not all(isinstance(name, str) for name in architectures):
        raise InputError(f"{where}: architectures is {short(architectures)}; give a list of class names")
    if not modelled.intersection(architectures):
        raise NotModelled(
            f"{where}: architectures is {short(list(architectures))}, and the formula here is that of {class_name}; "
            "its shapes can be read from transformers instead"
        )
