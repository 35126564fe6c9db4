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
    # encoders
    "BertLayer": ("bert", "block"),
    "RobertaLayer": ("bert", "block"),
    "XLMRobertaLayer": ("bert", "block"),
    "ElectraLayer": ("bert", "block"),
    "TransformerBlock": ("bert", "distilbert"),
    "ModernBertEncoderLayer": ("bert", "modernbert"),
    # encoder-decoders
    "T5Block": ("t5", "t5"),
    "MT5Block": ("t5", "t5"),
    "UMT5Block": ("t5", "t5"),
    "BartEncoderLayer": ("seq2seq", "bart_encoder"),
    "BartDecoderLayer": ("seq2seq", "bart_decoder"),
    "MBartEncoderLayer": ("seq2seq", "pre_encoder"),
    "MBartDecoderLayer": ("seq2seq", "pre_decoder"),
    "PegasusEncoderLayer": ("seq2seq", "pre_encoder"),
    "PegasusDecoderLayer": ("seq2seq", "pre_decoder"),
    "WhisperEncoderLayer": ("seq2seq", "pre_encoder"),
    "WhisperDecoderLayer": ("seq2seq", "pre_decoder"),
    # vision
    "ViTLayer": ("vision", "vit"),
    "DeiTLayer": ("vision", "deit"),
    "Dinov2Layer": ("vision", "dinov2"),
    "CLIPEncoderLayer": ("vision", "clip_or_text"),
    "SiglipEncoderLayer": ("vision", "siglip"),
    "InternVLVisionLayer": ("vision", "internvl"),
}
