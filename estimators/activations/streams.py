"""Pieces whose input is not the residual stream of a decoder: image patches, pixels, frames, pooled tokens."""

from __future__ import annotations

from collections.abc import Callable

from estimators.activations.builder import Builder
from estimators.activations.tape import Dim, Tensor
from estimators.values import dataclass


@dataclass(frozen=True, slots=True)
class Over:
    """A piece over an input of its own ``shape``; ``dtype`` where it is not that of the stream (token ids)."""

    shape: Callable[[Builder], tuple[Dim, ...]]
    run: Callable[[Builder, Tensor], Tensor]
    dtype: str = ""

    def __call__(self, b: Builder, x: Tensor) -> Tensor:
        return self.run(b, x)


def input_of(b: Builder, piece: Callable[[Builder, Tensor], Tensor], needs_gradient: bool) -> Tensor:
    """The input of a piece: tokens of the residual stream unless the piece says otherwise."""
    if not isinstance(piece, Over):
        return b.tape.leaf("block input", ("B", "S", b.width), b.stream, needs_gradient)
    floating = piece.dtype != "int64"
    return b.tape.leaf("piece input", piece.shape(b), piece.dtype or b.stream, needs_gradient and floating)
