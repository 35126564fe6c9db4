"""Which modules become units of FSDP or are recomputed as one: the block classes of the resolved model."""

from __future__ import annotations

from estimators.run import Run


def block_classes(run: Run) -> tuple[str, ...]:
    """Class names of the model's blocks, as transformers and accelerate look them up, each once."""
    return tuple(dict.fromkeys(part.class_name for part in run.model.blocks))
