"""Networks of every kind of input, small enough for two processes of a CPU."""

from __future__ import annotations

from validate.cells.models import LLAMA

_TEXT = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 1000}  # fmt: skip
_GRID = {"depth": 2, "num_heads": 4, "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2,
         "temporal_patch_size": 2}  # fmt: skip
_SQUARE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_channels": 3, "image_size": 56, "patch_size": 14}  # fmt: skip

# Name -> config, and what else the question says.
NETWORKS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "llama": ({**LLAMA, "architectures": ["LlamaForCausalLM"]}, {}),
    "mixtral": ({
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], **_TEXT, "num_hidden_layers": 4,
        "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None,
    }, {}),
    "qwen2-vl": ({
        "model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"],
        "text_config": {"model_type": "qwen2_vl_text", **_TEXT,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}},
        "vision_config": {"model_type": "qwen2_vl_vision", **_GRID, "embed_dim": 64, "mlp_ratio": 2, "hidden_size": 64},
    }, {"seq_len": 96, "image_patches": 144}),
    "qwen2.5-vl": ({
        "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "text_config": {"model_type": "qwen2_5_vl_text", **_TEXT,
                        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}},
        "vision_config": {"model_type": "qwen2_5_vl_vision", **_GRID, "hidden_size": 64, "intermediate_size": 128,
                          "out_hidden_size": 64, "window_size": 112, "fullatt_block_indexes": [1]},
    }, {"seq_len": 96, "image_patches": 144}),
    "gemma3": ({
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "mm_tokens_per_image": 4,
        "text_config": {"model_type": "gemma3_text", **_TEXT, "head_dim": 16, "sliding_window": 32},
        "vision_config": {"model_type": "siglip_vision_model", **_SQUARE, "vision_use_head": False},
    }, {"seq_len": 64}),
    "llava": ({
        "model_type": "llava", "architectures": ["LlavaForConditionalGeneration"],
        "text_config": {"model_type": "llama", **_TEXT},
        "vision_config": {"model_type": "clip_vision_model", **_SQUARE, "projection_dim": 32, "vocab_size": 100},
    }, {"seq_len": 64}),
    "whisper": ({
        "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "vocab_size": 1000,
        "num_mel_bins": 20, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "d_model": 64,
        "max_source_positions": 100, "max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 1,
    }, {"seq_len": 48}),
    "t5": ({
        "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 1000, "d_model": 64,
        "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
        "decoder_start_token_id": 0, "dropout_rate": 0.0,
    }, {"seq_len": 48, "attention": "eager"}),  # sdpa's kernel for a bias with a gradient is a GPU's
    "vit": ({
        "model_type": "vit", "architectures": ["ViTForImageClassification"], **_SQUARE,
    }, {"seq_len": 16}),
}  # fmt: skip
