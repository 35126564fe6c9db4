"""Which file describes the forward of a block, by the class that transformers calls it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module

from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor
from estimators.errors import NotModelled

# class of a block -> module in this package, function in it
BLOCKS: dict[str, tuple[str, str]] = {
    "LlamaDecoderLayer": ("llama", "block"),
}

# Blocks whose code lives on the hub and is never run here: described by their nearest relative, not compared.
BY_RELATIVE: frozenset[str] = frozenset()

Block = Callable[[Builder, Tensor], Tensor]


@lru_cache(maxsize=256)
def block_of(class_name: str) -> Block:
    """The forward of a block. Raises ``NotModelled`` for a class that nobody described."""
    if class_name not in BLOCKS:
        raise NotModelled(f"what autograd keeps of {class_name} is not described; known blocks: {len(BLOCKS)}")
    module, name = BLOCKS[class_name]
    block: Block = getattr(import_module(f"{__name__}.{module}"), name)
    return block
