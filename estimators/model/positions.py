"""Positions that end: a learned table, or one of sines, unlike rotary embeddings, which only get worse beyond what was trained."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from estimators.model.spec import ModelSpec
from estimators.workload import FIELD_ALIASES, workload

TABLES = ("wpe.weight", "embed_positions.weight", "position_embeddings.weight")
SINES = ("embed_positions",)  # a buffer in which GPT-J and CodeGen look angles up
ROWS = ("n_positions", "max_position_embeddings", "max_target_positions")
ELSEWHERE = ("encoder.embed_positions", "vision", "visual")  # of audio frames and of patches
AFTER_PADDING = ("roberta", "xlm-roberta", "camembert")  # positions are counted from the padding token's index on
LENGTH = ("seq_len", *(alias for alias, name in FIELD_ALIASES.items() if name == "seq_len"))


@lru_cache(maxsize=4096)
def learned_positions(model: ModelSpec) -> int | None:
    """The longest sequence of tokens that the model's table of positions has a row for; None where there is no table.

    A longer one fails in the embedding (transformers: ``IndexError``).
    """
    for part in model.parts:
        tensors = ((part.parameters, TABLES), (part.buffers, SINES))
        names = (
            f"{part.prefix}{tensor.name}" for found, ends in tensors for tensor in found if tensor.name.endswith(ends)
        )
        if any(not any(word in name for word in ELSEWHERE) for name in names):
            rows = next((n for key in ROWS if isinstance(n := model.config.get(key), int)), None)
            if rows is None or model.family not in AFTER_PADDING:
                return rows
            padding = model.config.get("pad_token_id")
            return rows - 1 - (padding if isinstance(padding, int) else 1)
    return None


def default_length(model: ModelSpec, given: Mapping[str, Any]) -> int | None:
    """The sequence length of a question that gives none, where the plain default is longer than the model goes."""
    longest = learned_positions(model)
    if longest is None or longest >= workload().seq_len or any(given.get(name) is not None for name in LENGTH):
        return None
    return max(longest, 1)
