"""Attention that sees both ways, or another sequence; over tokens, patches or frames alike."""

from __future__ import annotations

from estimators.activations.attention import Scores
from estimators.activations.builder import Builder
from estimators.activations.tape import ZERO, Dim, Tensor
from estimators.values import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """The four projections of a family, in the order in which it calls them."""

    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    out: str = "self_attn.out_proj"

    def under(self, prefix: str) -> Names:
        return Names(*(f"{prefix}{name}" for name in (self.q, self.k, self.v, self.out)))


def head_size(b: Builder) -> int:
    return b.width // b.number("num_attention_heads", "num_heads", "n_heads", "encoder_attention_heads")


def heads(b: Builder, x: Tensor, size: int) -> Tensor:
    """[batch, tokens, heads x size] seen as [batch, heads, tokens, size]."""
    batch, tokens, width = x.shape
    return b.view(x, (batch, int(width) // size, tokens, size), swaps=True)


def merged(b: Builder, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scores: Scores) -> Tensor:
    """Attention, its heads side by side again."""
    batch, count, tokens, _ = q.shape
    output = b.attend(q, k, v, mask, scores)
    return b.view(output, (batch, tokens, int(count) * int(v.shape[-1])))


def attention(
    b: Builder,
    hidden: Tensor,
    names: Names,
    size: int,
    dropout: float = 0.0,
    states: Tensor | None = None,
    mask: Tensor | None = None,
    upcast: bool = False,
) -> Tensor:
    """Projections, attention, output. ``states``: what keys and values come from, when not ``hidden`` itself."""
    source = hidden if states is None else states
    q = heads(b, b.module(hidden, names.q), size)
    k = heads(b, b.module(source, names.k), size)
    v = heads(b, b.module(source, names.v), size)
    return b.module(merged(b, q, k, v, mask, Scores(upcast=upcast, dropout=dropout)), names.out)


def outside(
    b: Builder, name: str, shape: tuple[Dim, ...], needs_gradient: bool = True, counted: bool = True, dtype: str = ""
) -> Tensor:
    """Another input that all blocks share and that a gradient flows to (encoder states): counted once for the model.

    ``counted`` is off for what the first block made and counts (T5's position bias).
    """
    if name not in b.shared:
        tensor = b.tape.leaf(name, shape, dtype or b.stream, needs_gradient)
        size = b.tape.forget(tensor)
        b.shared[name], b.true_sizes[name] = (tensor, size if counted else ZERO), size
        if tensor.needs_grad:
            b.carried[name] = size
    return b.shared[name][0]


def padding_mask(b: Builder) -> Tensor | None:
    """Encoders mask padding only; without padding there is no mask at all."""
    if b.kernels.padding == "none":
        return None
    dtype = "bool" if b.kernels.attention == "sdpa" else b.stream
    return None if b.kernels.attention == "flash" else b.given("mask", ("B", 1, "S", "S"), dtype)


def trains(b: Builder) -> bool:
    """Whether the base weights of this block train, and so probably those outside of it."""
    return any(p.trainable and "lora_" not in p.name for p in b.parameters.values())
