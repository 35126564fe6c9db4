"""Small models of every dense decoder family: sizes that no two meanings share, dropout where a family has it."""

from __future__ import annotations

from typing import Any

from estimators.run import ONLY_EAGER

SIZES: dict[str, Any] = {
    "vocab_size": 960, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": 0,
}  # fmt: skip
WIDE = {**SIZES, "head_dim": 24}
UNCUT = {**SIZES, "sliding_window": None}
GPT = {"vocab_size": 960, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "attn_pdrop": 0.0,
       "embd_pdrop": 0.0}  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "bloom": {"vocab_size": 960, "hidden_size": 64, "n_layer": 2, "n_head": 4}, "arcee": SIZES, "apertus": SIZES,
    "falcon": {"vocab_size": 960, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
               "num_kv_heads": 2, "new_decoder_architecture": True},
    "codegen": {**GPT, "rotary_dim": 8}, "cohere": SIZES, "cohere2": SIZES, "ernie4_5": SIZES,
    "exaone4": SIZES, "gemma": WIDE, "gemma2": WIDE, "gemma3_text": WIDE, "glm": {**SIZES, "head_dim": 16},
    "glm4": {**SIZES, "head_dim": 16}, "gpt2": GPT, "gpt_bigcode": GPT, "gpt_neox": SIZES,
    "gpt_neo": {"vocab_size": 960, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 512,
                "attention_types": [[["global", "global"], 1]]},
    "gptj": {**GPT, "rotary_dim": 8}, "granite": SIZES, "helium": {**SIZES, "head_dim": 16},
    "hunyuan_v1_dense": {**SIZES, "head_dim": 16}, "jais2": SIZES, "llama": SIZES, "ministral3": UNCUT,
    "mistral": UNCUT,
    "mpt": {"vocab_size": 960, "d_model": 64, "n_layers": 2, "n_heads": 4},
    "nemotron": SIZES, "olmo": SIZES, "olmo2": SIZES, "olmo3": SIZES,
    "opt": {"vocab_size": 960, "hidden_size": 64, "ffn_dim": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
            "max_position_embeddings": 512, "word_embed_proj_dim": 64},
    "phi": SIZES, "phi3": SIZES, "qwen2": SIZES, "qwen3": WIDE, "seed_oss": {**SIZES, "attention_dropout": 0.0},
    "smollm3": SIZES, "stablelm": SIZES, "starcoder2": {**UNCUT, "residual_dropout": 0.1},
}  # fmt: skip

EAGER_ONLY = ONLY_EAGER & FAMILIES.keys()

# Other switches of a family that change its tensors.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("gpt_neox", {"use_parallel_residual": False, "rotary_pct": 1.0}),
    ("gpt_bigcode", {"multi_query": False}),
    ("opt", {"do_layer_norm_before": False}),
    ("stablelm", {"use_parallel_residual": True, "qk_layernorm": True}),
    ("phi", {"qk_layernorm": True, "num_key_value_heads": 4}),
    ("cohere", {"use_qk_norm": True}),
    ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
    ("gpt2", {"activation_function": "gelu_pytorch_tanh", "resid_pdrop": 0.0}),
    ("qwen2", {"num_key_value_heads": 4}),
    ("bloom", {"apply_residual_connection_post_layernorm": True, "hidden_dropout": 0.1}),
    ("falcon", {"new_decoder_architecture": False, "multi_query": True, "parallel_attn": True}),
    ("falcon", {"new_decoder_architecture": False, "multi_query": False, "num_kv_heads": 4}),
    ("falcon", {"new_decoder_architecture": False, "multi_query": False, "parallel_attn": False, "num_kv_heads": 4}),
]
