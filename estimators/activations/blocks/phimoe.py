"""PhimoeDecoderLayer: transformers/models/phimoe/modeling_phimoe.py. LayerNorms; a router that samples two experts."""

from __future__ import annotations

from estimators.activations.blocks import pieces
from estimators.activations.blocks.experts import experts
from estimators.activations.blocks.frames import pre_norm
from estimators.activations.builder import Builder
from estimators.activations.routing import gather
from estimators.activations.tape import Gradient, Tensor
from estimators.activations.writes import masked_fill, multiply_in_place


def block(b: Builder, hidden: Tensor) -> Tensor:
    return pre_norm(b, hidden, pieces.attention, mixture, b.norm)


def mixture(b: Builder, hidden: Tensor) -> Tensor:
    """PhimoeSparseMoeBlock: noise multiplies its input in place, twice (in the block and in the router)."""
    noisy = b.fraction("input_jitter_noise") > 0
    for _ in range(2 if noisy else 0):
        hidden = multiply_in_place(b, hidden, "jitter")
    logits = b.module(hidden, "mlp.router")
    weights, indices = sparse_mixer(b, logits)
    return experts(b, hidden, weights, indices)


def sparse_mixer(b: Builder, logits: Tensor) -> tuple[Tensor, Tensor]:
    """``sparsemixer``: one expert, then another among the rest."""
    first, chosen = sample(b, logits, logits)
    masked = b.tape.record(b.tape.new("masked scores", logits.shape, logits.dtype), "scatter", [logits],
                           [("chosen expert", chosen)], lambda g: [b.scale(g)])  # fmt: skip
    second, _also = sample(b, masked, logits)
    weights = b.cat([first, second], (*first.shape[:-1], 2))
    return weights, b.tape.new("chosen experts", (*first.shape[:-1], 2), "int64")


def sample(b: Builder, scores: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """One expert of ``sparsemixer``: a threshold, Gumbel sampling, a multiplier with its own gradient."""
    tape, rows, dtype = b.tape, (*scores.shape[:-1], 1), scores.dtype
    gates = masked_fill(b, scores, "below the threshold")
    chosen = tape.new("chosen expert", rows, "int64")
    gates = b.softmax(gates, None, "gates")
    multiplier = gather(b, gates, chosen, "multiplier")
    shape = tuple(logits.shape)

    def backward(_: Tensor) -> list[Gradient]:
        made = [tape.new("gradient of scores", shape, dtype) for _ in range(2)]
        return [made[0], None]

    keep = [("multiplier", multiplier), ("chosen expert", chosen), ("gates", gates)]
    weight = tape.new("weight", rows, dtype)
    return tape.record(weight, "PhimoeMultiplier", [logits, multiplier], keep, backward), chosen
