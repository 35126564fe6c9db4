"""Mixtures of experts, encoders, encoder-decoders and vision towers: class of a block -> module here, function in it."""

OTHERS: dict[str, tuple[str, str]] = {
    # mixtures of experts
    "MixtralDecoderLayer": ("mixtral", "mixtral"),
    "Qwen2MoeDecoderLayer": ("mixtral", "qwen2_moe"),
    "Qwen3MoeDecoderLayer": ("mixtral", "qwen3_moe"),
    "OlmoeDecoderLayer": ("mixtral", "olmoe"),
    "GraniteMoeDecoderLayer": ("mixtral", "granitemoe"),
    "Glm4MoeDecoderLayer": ("mixtral", "glm4_moe"),
    "PhimoeDecoderLayer": ("phimoe", "block"),
    "GptOssDecoderLayer": ("gpt_oss", "block"),
    "Llama4TextDecoderLayer": ("llama4", "block"),
    "DeepseekV2DecoderLayer": ("deepseek", "v2"),
    "DeepseekV3DecoderLayer": ("deepseek", "v3"),
}
