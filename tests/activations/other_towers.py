"""Small configs of encoders, encoder-decoders, vision towers; dimensions differ so that no two tensors look alike."""

from __future__ import annotations

from typing import Any

BERT = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 88,
        "max_position_embeddings": 256, "pad_token_id": 0}  # fmt: skip
BART = {"vocab_size": 96, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 88, "decoder_ffn_dim": 72, "max_position_embeddings": 256,
        "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}  # fmt: skip
T5 = {"vocab_size": 96, "d_model": 64, "d_kv": 24, "d_ff": 88, "num_layers": 2, "num_heads": 4}
VIT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 88, "image_size": 96,
       "patch_size": 8}  # fmt: skip
TEXT = {"vocab_size": 96, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 72,
        "max_position_embeddings": 256}  # fmt: skip

ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertLayer", BERT),
    "roberta": ("RobertaLayer", BERT),
    "xlm-roberta": ("XLMRobertaLayer", BERT),
    "electra": ("ElectraLayer", BERT | {"embedding_size": 32}),
    "distilbert": ("TransformerBlock", {"vocab_size": 96, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 88}),
    "modernbert": ("ModernBertEncoderLayer", BERT | {"local_attention": 512}),
}

PAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5Block", T5),
    "mt5": ("MT5Block", T5 | {"feed_forward_proj": "gated-gelu"}),
    "umt5": ("UMT5Block", T5 | {"feed_forward_proj": "gated-gelu"}),
    "bart": ("Bart", BART),
    "mbart": ("MBart", BART),
    "pegasus": ("Pegasus", BART),
    "whisper": ("Whisper", BART | {"num_mel_bins": 16, "max_source_positions": 100, "max_target_positions": 256}),
}

TOWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTLayer", VIT | {"hidden_dropout_prob": 0.1}),
    "deit": ("DeiTLayer", VIT),
    "dinov2": ("Dinov2Layer", VIT | {"mlp_ratio": 3}),
    "clip": ("CLIPEncoderLayer", {"vision_config": VIT, "text_config": TEXT, "projection_dim": 40}),
    "siglip": ("SiglipEncoderLayer", {"vision_config": VIT, "text_config": TEXT}),
}

QWEN_TEXT = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "intermediate_size": 88, "head_dim": 16, "pad_token_id": 0,
             "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
             }  # fmt: skip
QWEN_EYE = {"depth": 2, "num_heads": 4, "patch_size": 14, "temporal_patch_size": 2, "image_patches": 144}

QWEN: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_vl": ("Qwen2VLVisionBlock", {"text_config": QWEN_TEXT, "vision_config": QWEN_EYE | {
        "embed_dim": 80, "hidden_size": 64, "mlp_ratio": 3}}),
    "qwen2_5_vl": ("Qwen2_5_VLVisionBlock", {"text_config": QWEN_TEXT, "vision_config": QWEN_EYE | {
        "hidden_size": 80, "out_hidden_size": 64, "intermediate_size": 104, "fullatt_block_indexes": [1]}}),
    "qwen3_vl": ("Qwen3VLVisionBlock", {"text_config": QWEN_TEXT, "vision_config": QWEN_EYE | {
        "hidden_size": 80, "out_hidden_size": 64, "intermediate_size": 104, "num_position_embeddings": 144,
        "deepstack_visual_indexes": [0]}}),
}  # fmt: skip

EYE = VIT | {"image_size": 96, "patch_size": 8}
INNER = QWEN_TEXT | {"model_type": "llama", "pad_token_id": 0}

# family -> its tower's block, and a config; the tower alone is run
MULTIMODAL: dict[str, tuple[str, dict[str, Any]]] = {
    "llava": ("CLIPEncoderLayer", {"text_config": INNER, "vision_config": EYE | {"model_type": "clip_vision_model"}}),
    "paligemma": ("SiglipEncoderLayer", {"vision_config": EYE | {"model_type": "siglip_vision_model"}, "text_config":
                  QWEN_TEXT | {"model_type": "gemma"}}),
    "gemma3": ("SiglipEncoderLayer", {"vision_config": EYE | {"model_type": "siglip_vision_model"}, "text_config":
               QWEN_TEXT | {"model_type": "gemma3_text"}}),
    "idefics3": ("Idefics3EncoderLayer", {"text_config": INNER, "vision_config": EYE}),
    "internvl": ("InternVLVisionLayer", {"text_config": INNER, "vision_config": VIT | {
        "image_size": [96, 96], "patch_size": [8, 8]}}),
    "mistral3": ("PixtralAttentionLayer", {"text_config": INNER | {"model_type": "mistral"}, "vision_config": {
        "model_type": "pixtral", **VIT, "head_dim": 16}}),
}  # fmt: skip
