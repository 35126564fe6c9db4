"""Method ``freeze``: a part of the network trains as it is, the rest stands still."""

from __future__ import annotations

import re
from functools import partial

from estimators.model.methods.matching import full_name, require_known, runs
from estimators.model.spec import ModelSpec, Part
from estimators.values import replace

LAST_BLOCKS = 2  # LLaMA-Factory's freeze_trainable_layers (hparams/finetuning_args.py)
MAIN_ROLES = ("decoder", "encoder")


def freeze(model: ModelSpec, names: tuple[str, ...]) -> ModelSpec:
    """``names`` are modules that do not train; without any, only the last two blocks train.

    A name matches a module path from its start or at a dot, and reaches everything below it: ``model.layers.3``,
    ``embed_tokens``, ``vision_tower``. Raises ``UnknownName`` where it matches nothing.
    """
    if not names:
        return replace(model, parts=_last_blocks(model, LAST_BLOCKS))
    used: set[str] = set()
    parts: list[Part] = []
    patterns = {name: re.compile(rf"(^|\.){re.escape(name)}(?![0-9])") for name in names}

    def stand_still(part: Part, stem: str) -> tuple[bool, ...]:
        hits = [[n for n, at in patterns.items() if at.search(full_name(stem, p.name))] for p in part.parameters]
        used.update(name for found in hits for name in found)
        return tuple(map(bool, hits))

    for part in model.parts:
        for piece, still in runs(part, names, partial(stand_still, part)):
            marked = tuple(
                replace(p, trainable=False) if s else p for p, s in zip(piece.parameters, still, strict=True)
            )
            parts.append(replace(piece, parameters=marked))
    require_known("module to freeze", names, used, model)
    return replace(model, parts=tuple(parts))


def _last_blocks(model: ModelSpec, count: int) -> tuple[Part, ...]:
    """Everything frozen but the last ``count`` blocks of the main stack."""
    parts: list[Part] = []
    left = count
    main = MAIN_ROLES if any(part.role in MAIN_ROLES for part in model.blocks) else {p.role for p in model.blocks}
    for part in reversed(model.parts):
        if not part.is_block or part.role not in main or not left:
            parts.append(_frozen(part))
            continue
        taken = min(left, part.count)
        left -= taken
        kept = part.count - taken
        parts.append(replace(part, first=part.first + kept, count=taken))
        if kept:
            parts.append(_frozen(replace(part, count=kept)))
    return tuple(reversed(parts))


def _frozen(part: Part) -> Part:
    return replace(part, parameters=tuple(replace(p, trainable=False) for p in part.parameters))
