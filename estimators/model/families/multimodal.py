"""What vision-language models share: a language model of any dense family, a vision tower, and the frame of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from estimators.errors import InputError, NotModelled, short
from estimators.model.families import build
from estimators.model.families.common import Config, linear
from estimators.model.families.pieces import present, root
from estimators.model.spec import ModelSpec, Part
from estimators.values import dataclass, replace

# model_type of a vision_config -> module with VISION_DEFAULTS and vision_tower
TOWERS = {"clip_vision_model": "clip", "siglip_vision_model": "siglip", "pixtral": "pixtral"}


@dataclass(frozen=True, slots=True)
class Language:
    """The body of a language model, renamed; no head. ``tied``: whether its own config would tie one."""

    parts: tuple[Part, ...]
    embedding: str
    rows: int
    hidden: int
    tied: bool


def renamed(part: Part, old: str, new: str) -> Part:
    """The part with its leading ``old.`` replaced; parameters elsewhere (the head) fall away."""
    if part.is_block:
        return replace(part, prefix=new + part.prefix.removeprefix(old))
    kept = (p for p in part.parameters if p.name.startswith(f"{old}."))
    return replace(
        part,
        parameters=tuple(replace(p, name=new + p.name.removeprefix(old)) for p in kept),
        buffers=tuple(replace(b, name=new + b.name.removeprefix(old)) for b in part.buffers),
    )


def language(config: Config, prefix: str, family: str, defaults: Mapping[str, Any] | None = None) -> Language:
    """``text_config`` as the family that it names (``family`` if none), under ``prefix``.

    ``defaults`` hold when the section is absent altogether.
    """
    values = config.raw("text_config", defaults or {})
    if not isinstance(values, Mapping):
        raise InputError(f"{config.where}: text_config is {short(values)}; give an object")
    return body(build({"model_type": family, **values, "architectures": None}, f"{config.where}.text_config"), prefix)


def body(spec: ModelSpec, prefix: str) -> Language:
    """A causal LM without its head, under ``prefix``."""
    base = spec.embedding.split(".")[0]
    table = next(p for part in spec.parts for p in part.parameters if p.name == f"{spec.embedding}.weight")
    rows, hidden = table.shape
    return Language(
        parts=present(*(renamed(part, base, prefix) for part in spec.parts)),
        embedding=prefix + spec.embedding.removeprefix(base),
        rows=rows,
        hidden=hidden,
        tied=bool(spec.tied),
    )


def vision(config: Config, prefix: str, tower: str, defaults: Mapping[str, Any]) -> tuple[tuple[Part, ...], int]:
    """``vision_config`` as the tower that it names (``tower`` if none), and the width of its output.

    ``defaults`` hold when the section is absent altogether.
    """
    section = config.section("vision_config", {})
    kind = section.text("model_type", tower)
    if kind not in TOWERS:
        raise NotModelled(f"{section.where}: model_type {short(kind)} is no vision tower with a formula here "
                          f"({', '.join(TOWERS)}); its shapes can be read from transformers instead")  # fmt: skip
    module = import_module(f"estimators.model.families.{TOWERS[kind]}")
    assumed = module.VISION_DEFAULTS if config.raw("vision_config") is not None else module.VISION_DEFAULTS | defaults
    section = config.section("vision_config", assumed)
    return module.vision_tower(section, prefix), section.integer("hidden_size")


def feature_layers(config: Config) -> int:
    """How many layers of the tower the projector reads: ``vision_feature_layer`` is an index or a list of them."""
    value = config.raw("vision_feature_layer", -1)
    if isinstance(value, list | tuple) and value:
        return len(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{config.where}: vision_feature_layer is {short(value)}; give an index or a list of them")
    return 1


def assemble(
    config: Config, family: str, class_name: str, before: Iterable[Part], text: Language, tie: bool | None = None
) -> ModelSpec:
    """Vision and projector, language model, head; the outer config decides on tying, unless ``tie`` says."""
    tie = config.flag("tie_word_embeddings") if tie is None else tie
    head = () if tie else (root(linear("lm_head", text.rows, text.hidden)),)
    return ModelSpec(
        name="",
        family=family,
        class_name=class_name,
        parts=(*before, *text.parts, *head),
        config=config.values,
        tied={"lm_head.weight": f"{text.embedding}.weight"} if tie else {},
        embedding=text.embedding,
        head="lm_head",
    )
