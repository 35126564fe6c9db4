"""Small configs of the families in ``test_blocks_other``; dimensions differ so that no two tensors look alike."""

from __future__ import annotations

from typing import Any

DENSE = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 24}  # fmt: skip

LATENT = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 4, "intermediate_size": 88, "moe_intermediate_size": 40, "n_routed_experts": 8,
          "num_experts_per_tok": 3, "n_shared_experts": 2, "kv_lora_rank": 36, "q_lora_rank": 44,
          "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 40, "n_group": 2, "topk_group": 1}  # fmt: skip

MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": DENSE | {"intermediate_size": 88, "num_local_experts": 8},
    "qwen2_moe": DENSE | {"moe_intermediate_size": 40, "shared_expert_intermediate_size": 72, "num_experts": 6,
                          "num_experts_per_tok": 3, "intermediate_size": 88},
    "qwen3_moe": DENSE | {"moe_intermediate_size": 40, "num_experts": 6, "num_experts_per_tok": 3,
                          "intermediate_size": 88},
    "olmoe": DENSE | {"head_dim": 16, "intermediate_size": 40, "num_experts": 6, "num_experts_per_tok": 3},
    "granitemoe": DENSE | {"intermediate_size": 40, "num_local_experts": 6, "num_experts_per_tok": 3},
    "glm4_moe": DENSE | {"intermediate_size": 88, "moe_intermediate_size": 40, "n_routed_experts": 8,
                         "num_experts_per_tok": 3, "use_qk_norm": True, "n_group": 2, "topk_group": 1,
                         "first_k_dense_replace": 0},
    "deepseek_v2": LATENT | {"first_k_dense_replace": 0, "topk_method": "group_limited_greedy"},
    "deepseek_v3": LATENT | {"first_k_dense_replace": 0},
    "phimoe": DENSE | {"intermediate_size": 40, "num_local_experts": 6, "input_jitter_noise": 0.01},
    "gpt_oss": DENSE | {"intermediate_size": 40, "num_local_experts": 6, "num_experts_per_tok": 3},
    "llama4_text": DENSE | {"intermediate_size": 40, "intermediate_size_mlp": 88, "num_local_experts": 6},
}  # fmt: skip
