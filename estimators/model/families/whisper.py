"""Whisper: two convolutions over the spectrogram, then BART's blocks with no bias on the keys."""

from __future__ import annotations

from estimators.model.families import seq2seq
from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.pieces import convolution, root
from estimators.model.spec import ModelSpec
from estimators.values import replace

# transformers WhisperConfig
DEFAULTS = {
    "vocab_size": 51865, "num_mel_bins": 80, "encoder_layers": 4, "encoder_attention_heads": 6, "decoder_layers": 4,
    "decoder_attention_heads": 6, "decoder_ffn_dim": 1536, "encoder_ffn_dim": 1536, "d_model": 384,
    "max_source_positions": 1500, "max_target_positions": 448, "tie_word_embeddings": True,
}  # fmt: skip
KERNEL = 3


def build(config: Config) -> ModelSpec:
    rows, hidden, tie = config.integer("vocab_size"), config.integer("d_model"), config.flag("tie_word_embeddings")
    words = "model.decoder.embed_tokens"
    places = embedding("model.encoder.embed_positions", config.integer("max_source_positions"), hidden)
    return ModelSpec(
        name="",
        family="whisper",
        class_name="WhisperForConditionalGeneration",
        parts=(
            root(
                convolution("model.encoder.conv1", (hidden, config.integer("num_mel_bins"), KERNEL)),
                convolution("model.encoder.conv2", (hidden, hidden, KERNEL)),
                tuple(replace(p, trainable=False) for p in places),  # the class freezes them
                role="audio",
            ),
            seq2seq.blocks(config, "encoder", "WhisperEncoderLayer", key_bias=False, role="audio"),
            root(norm("model.encoder.layer_norm", hidden, bias=True), role="audio"),
            root(
                embedding(words, rows, hidden),
                embedding("model.decoder.embed_positions", config.integer("max_target_positions"), hidden),
            ),
            seq2seq.blocks(config, "decoder", "WhisperDecoderLayer", key_bias=False),
            root(norm("model.decoder.layer_norm", hidden, bias=True), () if tie else linear("proj_out", rows, hidden)),
        ),
        config=config.values,
        tied={"proj_out.weight": f"{words}.weight"} if tie else {},
        embedding=words,
        head="proj_out",
    )
