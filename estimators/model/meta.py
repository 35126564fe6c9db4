"""A family without a formula here: its class in transformers, built on the meta device, and read like a live module.

torch and transformers are imported inside the functions. Code that a model brings along (``auto_map``) runs only when
the caller trusts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimators.errors import InputError, MissingDependency, NotModelled, short
from estimators.model.module import read_module
from estimators.model.spec import ModelSpec

# Heads are tried in this order when a config does not name its class.
AUTO_CLASSES = (
    "AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq",
    "AutoModelForMaskedLM", "AutoModelForImageClassification", "AutoModel",
)  # fmt: skip


def read_class(
    config: Mapping[str, Any], *, where: str, trust_remote_code: bool = False, folder: str | None = None
) -> ModelSpec:
    """The spec of the class that a config names.

    Raises ``MissingDependency`` without torch and transformers, ``NotModelled`` for a family that transformers does not
    know (or whose own code is not trusted), ``InputError`` for values that its class refuses.
    """
    torch, transformers = _libraries(where, str(config.get("model_type")))
    try:
        with torch.device("meta"):
            model = _build(transformers, config, where, trust_remote_code, folder)
    except (InputError, NotModelled):
        raise
    except Exception as wrong:  # anything a constructor may raise for values that it did not expect
        raise InputError(
            f"{where}: transformers cannot build {short(config.get('model_type'))} from it: {short(str(wrong), 200)}"
        ) from None
    return read_module(model, shapes="meta", source=where)


def _libraries(where: str, family: str) -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError:
        raise MissingDependency(
            f"{where}: there is no formula for model_type {short(family)}; pip install torch transformers, and its "
            "shapes are read from its class"
        ) from None
    return torch, transformers


def _build(
    transformers: Any, config: Mapping[str, Any], where: str, trust_remote_code: bool, folder: str | None
) -> Any:
    values = {key: value for key, value in config.items() if key != "auto_map"}
    family = values.pop("model_type", None)
    if family in transformers.CONFIG_MAPPING:
        parsed = transformers.CONFIG_MAPPING[family].from_dict({**values, "model_type": family})
        return _class_of(transformers, config, type(parsed), where)(parsed)
    if not config.get("auto_map"):
        raise NotModelled(f"{where}: neither the formulas here nor transformers know model_type {short(family)}")
    if not trust_remote_code or folder is None:
        raise NotModelled(
            f"{where}: model_type {short(family)} is defined by code that comes with the model (auto_map), which is "
            "not run; pass trust_remote_code=True for a folder that you trust"
        )
    parsed = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    offered = [name for name in AUTO_CLASSES if name in config["auto_map"]] or ["AutoModel"]
    return getattr(transformers, offered[0]).from_config(parsed, trust_remote_code=True)


def _class_of(transformers: Any, config: Mapping[str, Any], parsed: type, where: str) -> Any:
    """The class that ``architectures`` names, else the first head that transformers has for the config."""
    named = config.get("architectures")
    for name in named if isinstance(named, list | tuple) else ():
        model = getattr(transformers, name, None) if isinstance(name, str) else None
        if isinstance(model, type) and issubclass(model, transformers.PreTrainedModel):
            return model
    for auto in AUTO_CLASSES:
        mapping = getattr(transformers, auto)._model_mapping
        if parsed in mapping:
            model = mapping[parsed]
            return model[0] if isinstance(model, tuple) else model
    raise NotModelled(f"{where}: transformers has no model class for {parsed.__name__}")
