"""Encoder and decoder blocks of transformers/models/{bart,mbart,pegasus,whisper}/modeling_*.py.

Encoder and decoder are as long as the workload's sequence; Whisper's encoder sees ``max_source_positions`` frames.
"""

from __future__ import annotations

from estimators.activations.attention import Scores
from estimators.activations.blocks.two_way import Names, attention, heads, merged, outside, padding_mask
from estimators.activations.builder import Builder
from estimators.activations.streams import Over
from estimators.activations.tape import Dim, Tensor


def frames(b: Builder) -> Dim:
    """Positions of the encoder: Whisper's are fixed, after a convolution that halves them."""
    return b.number("max_source_positions") if "num_mel_bins" in b.config else "S"


def sublayer(b: Builder, hidden: Tensor, side: str, states: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Attention of a kind, and its dropout."""
    prefix = "self_attn" if states is None else "encoder_attn"
    size = b.width // b.number(f"{side}_attention_heads")
    names, drop = Names(*(f"{prefix}.{n}_proj" for n in ("q", "k", "v", "out"))), b.fraction("attention_dropout")
    attend = scaled_first if "num_mel_bins" in b.config else attention
    return b.dropout(attend(b, hidden, names, size, drop, states, mask), b.fraction("dropout", default=0.1))


def scaled_first(
    b: Builder, hidden: Tensor, names: Names, size: int, dropout: float, states: Tensor | None, mask: Tensor | None
) -> Tensor:
    """WhisperAttention: queries are scaled before, and q, k, v are copied head by head."""
    source = hidden if states is None else states
    q = b.contiguous(heads(b, b.scale(b.module(hidden, names.q)), size))
    k = b.contiguous(heads(b, b.module(source, names.k), size))
    v = b.contiguous(heads(b, b.module(source, names.v), size))
    return b.module(merged(b, q, k, v, mask, Scores(scaled=False, upcast=False, dropout=dropout)), names.out)


def feed_forward(b: Builder, hidden: Tensor) -> Tensor:
    hidden = b.activation(b.text("activation_function", default="gelu"), b.module(hidden, "fc1"))
    hidden = b.dropout(hidden, b.fraction("activation_dropout"))
    hidden = b.module(hidden, "fc2")
    return b.dropout(hidden, b.fraction("dropout", default=0.1))


def causal_mask(b: Builder) -> Tensor | None:
    return b.mask()


def encoder_states(b: Builder) -> Tensor:
    return outside(b, "encoder states", ("B", frames(b), b.width))


def bart_encoder(b: Builder, hidden: Tensor) -> Tensor:
    """BartEncoderLayer: norms behind the sums."""
    residual = hidden
    hidden = sublayer(b, hidden, "encoder", mask=padding_mask(b))
    hidden = b.add(residual, hidden)
    hidden = b.norm(hidden, "self_attn_layer_norm")

    residual = hidden
    hidden = feed_forward(b, hidden)
    hidden = b.add(residual, hidden)
    return b.norm(hidden, "final_layer_norm")


def bart_decoder(b: Builder, hidden: Tensor) -> Tensor:
    """BartDecoderLayer."""
    residual = hidden
    hidden = sublayer(b, hidden, "decoder", mask=causal_mask(b))
    hidden = b.add(residual, hidden)
    hidden = b.norm(hidden, "self_attn_layer_norm")

    residual = hidden
    hidden = sublayer(b, hidden, "decoder", encoder_states(b))
    hidden = b.add(residual, hidden)
    hidden = b.norm(hidden, "encoder_attn_layer_norm")

    residual = hidden
    hidden = feed_forward(b, hidden)
    hidden = b.add(residual, hidden)
    return b.norm(hidden, "final_layer_norm")


def _pre_encoder(b: Builder, hidden: Tensor) -> Tensor:
    """MBartEncoderLayer, PegasusEncoderLayer, WhisperEncoderLayer: norms before."""
    residual = hidden
    hidden = b.norm(hidden, "self_attn_layer_norm")
    hidden = sublayer(b, hidden, "encoder", mask=padding_mask(b))
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = feed_forward(b, b.norm(hidden, "final_layer_norm"))  # no name holds the norm's output
    return b.add(residual, hidden)


pre_encoder = Over(lambda b: ("B", frames(b), b.width), _pre_encoder)


def pre_decoder(b: Builder, hidden: Tensor) -> Tensor:
    """MBartDecoderLayer, PegasusDecoderLayer, WhisperDecoderLayer."""
    residual = hidden
    hidden = b.norm(hidden, "self_attn_layer_norm")
    hidden = sublayer(b, hidden, "decoder", mask=causal_mask(b))
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = b.norm(hidden, "encoder_attn_layer_norm")
    hidden = sublayer(b, hidden, "decoder", encoder_states(b))
    hidden = b.add(residual, hidden)

    residual = hidden
    hidden = feed_forward(b, b.norm(hidden, "final_layer_norm"))  # no name holds the norm's output
    return b.add(residual, hidden)
