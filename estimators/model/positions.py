"""Learned positions: a table that ends, unlike rotary embeddings, which only get worse beyond what was trained."""

from __future__ import annotations

from estimators.model.spec import ModelSpec

TABLES = ("wpe.weight", "embed_positions.weight", "position_embeddings.weight")
ROWS = ("n_positions", "max_position_embeddings", "max_target_positions")
ELSEWHERE = ("encoder.embed_positions", "vision", "visual")  # of audio frames and of patches


def learned_positions(model: ModelSpec) -> int | None:
    """The longest sequence of tokens that the model's table of positions has a row for; None where there is no table.

    A longer one fails in the embedding (transformers: ``IndexError``).
    """
    for part in model.parts:
        for parameter in part.parameters:
            name = f"{part.prefix}{parameter.name}"
            if name.endswith(TABLES) and not any(word in name for word in ELSEWHERE):
                return next((n for key in ROWS if isinstance(n := model.config.get(key), int)), None)
    return None
