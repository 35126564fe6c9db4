"""DeepSeek-V3 and R1: the blocks of V2, and a routing bias kept as a buffer. The prediction layer is not built."""

from __future__ import annotations

from estimators.model.families import moe
from estimators.model.families.common import Config
from estimators.model.families.decoder import rotary
from estimators.model.families.deepseek_v2 import check_groups, dense_then_sparse, latent_attention, shared_experts
from estimators.model.spec import Buffer, ModelSpec

# transformers DeepseekV3Config
DEFAULTS = {
    "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
    "n_group": 8, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "attention_bias": False,
    "tie_word_embeddings": False,
}  # fmt: skip


def routing_bias(config: Config) -> Buffer:
    """Steers the load among experts without a gradient."""
    return Buffer("mlp.gate.e_score_correction_bias", (config.integer("n_routed_experts"),), persistent=True)


def build(config: Config) -> ModelSpec:
    check_groups(config)
    dense = moe.gated_mlp("mlp", config.integer("hidden_size"), config.integer("intermediate_size"))
    blocks = dense_then_sparse(
        config, "DeepseekV3DecoderLayer", latent_attention(config), dense, shared_experts(config),
        (routing_bias(config),),
    )  # fmt: skip
    buffers = rotary(config, config.integer("qk_rope_head_dim"))
    return moe.decoder_only(config, "DeepseekV3ForCausalLM", blocks, buffers)
