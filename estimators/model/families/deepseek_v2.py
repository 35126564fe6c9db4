"""DeepSeek-V2: latent attention (keys and values through a low rank), first layers dense, shared experts."""

from __future__ import annotations

from estimators.errors import InputError
from estimators.model.families import moe
from estimators.model.families.common import Config, linear, norm
from estimators.model.families.decoder import Parameters, rotary
from estimators.model.families.pieces import Buffers
from estimators.model.spec import ModelSpec, Part

# transformers DeepseekV2Config
DEFAULTS = {
    "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "attention_bias": False, "mlp_bias": False, "first_k_dense_replace": 0,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "n_routed_experts": 64, "n_shared_experts": 2,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_intermediate_size": 1407,
    "tie_word_embeddings": False,
}  # fmt: skip


def latent_attention(config: Config) -> Parameters:
    """MLA. With ``q_lora_rank`` null the queries are projected directly."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    bias = config.flag("attention_bias")
    nope, rope, value = (config.integer(k) for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    rank = config.integer("kv_lora_rank")
    if config.raw("q_lora_rank") is None:
        query = linear("self_attn.q_proj", heads * (nope + rope), hidden)
    else:
        query_rank = config.integer("q_lora_rank")
        query = (
            *linear("self_attn.q_a_proj", query_rank, hidden, bias),
            *norm("self_attn.q_a_layernorm", query_rank),
            *linear("self_attn.q_b_proj", heads * (nope + rope), query_rank),
        )
    return (
        *query,
        *linear("self_attn.kv_a_proj_with_mqa", rank + rope, hidden, bias),
        *norm("self_attn.kv_a_layernorm", rank),
        *linear("self_attn.kv_b_proj", heads * (nope + value), rank),
        *linear("self_attn.o_proj", hidden, heads * value, bias),
    )


def shared_experts(config: Config, bias: bool = False) -> Parameters:
    """Stacked experts, the fp32 router, and the shared experts as one wide MLP."""
    hidden, width = config.integer("hidden_size"), config.integer("moe_intermediate_size")
    experts = moe.expert_count(config, "num_experts", "num_local_experts", "n_routed_experts")
    return (
        *moe.stacked_experts("mlp.experts", experts, hidden, width),
        *moe.router("mlp.gate", experts, hidden, keep_fp32="16bit"),
        *moe.gated_mlp("mlp.shared_experts", hidden, width * config.integer("n_shared_experts"), bias),
    )


def dense_then_sparse(
    config: Config, class_name: str, mixer: Parameters, dense: Parameters, sparse: Parameters, buffers: Buffers = ()
) -> list[Part]:
    """``first_k_dense_replace`` dense blocks, then sparse ones."""
    norms, count = moe.layer_norms(config.integer("hidden_size")), config.integer("num_hidden_layers")
    first = min(config.integer("first_k_dense_replace", minimum=0), count)
    runs = [
        moe.layers((*mixer, *dense, *norms), class_name, first),
        moe.layers((*mixer, *sparse, *norms), class_name, count - first, first, buffers),
    ]
    return [run for run in runs if run.count]


def check_groups(config: Config) -> None:
    """Device-limited routing splits the experts into ``n_group`` equal groups."""
    groups, experts = config.integer("n_group", 1), config.integer("n_routed_experts")
    if experts % groups:
        raise InputError(f"{config.where}: n_routed_experts {experts} is not a multiple of n_group {groups}; correct "
                         "one of them")  # fmt: skip


def build(config: Config) -> ModelSpec:
    bias = config.flag("mlp_bias")
    dense = moe.gated_mlp("mlp", config.integer("hidden_size"), config.integer("intermediate_size"), bias)
    check_groups(config)
    blocks = dense_then_sparse(
        config, "DeepseekV2DecoderLayer", latent_attention(config), dense, shared_experts(config, bias)
    )
    buffers = rotary(config, config.integer("qk_rope_head_dim"))
    return moe.decoder_only(config, "DeepseekV2ForCausalLM", blocks, buffers)
