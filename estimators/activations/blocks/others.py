"""Mixtures of experts, encoders, encoder-decoders and vision towers: class of a block -> module here, function in it."""

OTHERS: dict[str, tuple[str, str]] = {
    # mixtures of experts
    "MixtralDecoderLayer": ("mixtral", "mixtral"),
    "Qwen2MoeDecoderLayer": ("mixtral", "qwen2_moe"),
    "Qwen3MoeDecoderLayer": ("mixtral", "qwen3_moe"),
}
