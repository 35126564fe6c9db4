"""Small configs of the families in ``test_blocks_other``; dimensions differ so that no two tensors look alike."""

from __future__ import annotations

from typing import Any

DENSE = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 24}  # fmt: skip

MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": DENSE | {"intermediate_size": 88, "num_local_experts": 8},
    "qwen2_moe": DENSE | {"moe_intermediate_size": 40, "shared_expert_intermediate_size": 72, "num_experts": 6,
                          "num_experts_per_tok": 3, "intermediate_size": 88},
    "qwen3_moe": DENSE | {"moe_intermediate_size": 40, "num_experts": 6, "num_experts_per_tok": 3,
                          "intermediate_size": 88},
}  # fmt: skip
