"""GLM-4.5: grouped-query attention with half-rotated heads, experts and routing bias as in DeepSeek-V3."""

from __future__ import annotations

from estimators.model.families import moe
from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, read_heads, rotary
from estimators.model.families.deepseek_v2 import check_groups, dense_then_sparse, shared_experts
from estimators.model.families.deepseek_v3 import routing_bias
from estimators.model.spec import ModelSpec

# transformers Glm4MoeConfig
DEFAULTS = {
    "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
    "num_attention_heads": 96, "num_key_value_heads": 8, "attention_bias": False, "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "n_routed_experts": 128, "n_group": 1,
    "first_k_dense_replace": 1, "use_qk_norm": False, "tie_word_embeddings": False,
}  # fmt: skip
ROTARY_SHARE = 0.5  # of a head, unless the config says otherwise


def build(config: Config) -> ModelSpec:
    check_groups(config)
    heads = read_heads(config)
    norms = moe.qk_norms(heads.size, heads.size) if config.flag("use_qk_norm") else ()
    mixer = (*attention(config, heads, config.flag("attention_bias")), *norms)
    dense = moe.gated_mlp("mlp", config.integer("hidden_size"), config.integer("intermediate_size"))
    blocks = dense_then_sparse(
        config, "Glm4MoeDecoderLayer", mixer, dense, shared_experts(config), (routing_bias(config),)
    )
    buffers = rotary(config, heads.size, partial=ROTARY_SHARE)
    return moe.decoder_only(config, "Glm4MoeForCausalLM", blocks, buffers)
