"""Mixtures of experts, encoders, encoder-decoders, vision, vision-language and audio: equal to the real classes."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.modeling_layers import GradientCheckpointingLayer

from estimators.errors import InputError, NotModelled
from estimators.model.families import FAMILIES, build
from tests.model.meta import build_meta, compare_with_transformers

# A small decoder with odd widths; each case adds what is peculiar to its family.
DECODER = {
    "hidden_size": 36, "num_hidden_layers": 5, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 22, "vocab_size": 41, "pad_token_id": 0,
}  # fmt: skip
LATENT = {
    **DECODER, "num_key_value_heads": 6, "kv_lora_rank": 7, "q_lora_rank": 11, "qk_nope_head_dim": 5,
    "qk_rope_head_dim": 6, "v_head_dim": 3, "moe_intermediate_size": 9, "n_routed_experts": 6,
    "num_experts_per_tok": 2, "n_group": 3, "topk_group": 1,
}  # fmt: skip

MOE: list[tuple[str, dict[str, Any]]] = [
    ("mixtral", {**DECODER, "num_local_experts": 3}),
    ("mixtral", {**DECODER, "num_experts": 5, "head_dim": 8, "tie_word_embeddings": True}),
    ("qwen2_moe", {**DECODER, "num_experts": 7, "moe_intermediate_size": 10, "shared_expert_intermediate_size": 14}),
    ("qwen2_moe", {**DECODER, "num_experts": 4, "decoder_sparse_step": 2, "qkv_bias": False}),
    ("qwen2_moe", {**DECODER, "num_experts": 4, "mlp_only_layers": [0, 3], "tie_word_embeddings": True}),
    ("qwen3_moe", {**DECODER, "num_experts": 9, "moe_intermediate_size": 10}),
    ("qwen3_moe", {**DECODER, "num_local_experts": 9, "mlp_only_layers": [1], "head_dim": 10, "attention_bias": True}),
    ("qwen3_next", {**DECODER, "num_experts": 11, "moe_intermediate_size": 10, "linear_num_value_heads": 4,
                    "linear_num_key_heads": 2, "linear_key_head_dim": 6, "linear_value_head_dim": 5, "head_dim": 16}),
    ("qwen3_next", {**DECODER, "num_experts": 11, "mlp_only_layers": [0], "attention_bias": True,
                    "layer_types": ["full_attention", *["linear_attention"] * 3, "full_attention"]}),
    ("deepseek_v2", {**LATENT, "first_k_dense_replace": 1}),
    ("deepseek_v2", {**LATENT, "q_lora_rank": None, "n_shared_experts": 3, "attention_bias": True, "mlp_bias": True}),
    ("deepseek_v3", {**LATENT, "first_k_dense_replace": 2}),
    ("deepseek_v3", {**LATENT, "q_lora_rank": None, "first_k_dense_replace": 9, "tie_word_embeddings": True}),
    ("deepseek_v3", {**LATENT, "first_k_dense_replace": 0, "attention_bias": True}),
    ("glm4_moe", {**DECODER, "n_routed_experts": 9, "moe_intermediate_size": 10, "attention_bias": True}),
    ("glm4_moe", {**DECODER, "n_routed_experts": 9, "use_qk_norm": True, "head_dim": 16, "first_k_dense_replace": 3}),
    ("olmoe", {**DECODER, "num_experts": 9}),
    ("olmoe", {**DECODER, "num_experts": 9, "attention_bias": True, "tie_word_embeddings": True}),
    ("granitemoe", {**DECODER, "num_local_experts": 3}),
    ("granitemoe", {**DECODER, "attention_bias": True, "tie_word_embeddings": True}),
    ("phimoe", {**DECODER, "num_local_experts": 3}),
    ("phimoe", {**DECODER, "attention_bias": True, "lm_head_bias": True}),
    ("gpt_oss", {**DECODER, "num_local_experts": 5}),
    ("gpt_oss", {**DECODER, "attention_bias": False, "head_dim": 10, "tie_word_embeddings": True}),
    ("llama4_text", {**DECODER, "num_local_experts": 3, "intermediate_size_mlp": 50}),
    ("llama4_text", {**DECODER, "interleave_moe_layer_step": 2, "attention_bias": True, "intermediate_size_mlp": 50}),
    ("llama4_text", {**DECODER, "moe_layers": [1, 2], "tie_word_embeddings": True}),
]  # fmt: skip


def case_id(case: tuple[str, dict[str, Any]]) -> str:
    family, values = case
    shown = {k: v for k, v in values.items() if k not in DECODER and not isinstance(v, dict)}
    return "-".join([family, *(f"{k}={v}" for k, v in list(shown.items())[-2:])])


def check(family: str, values: dict[str, Any]) -> None:
    """Equal to the real class; blocks are the modules that transformers checkpoints."""
    config = {"model_type": family, **values}
    spec = build(config)
    assert spec.family == family
    model = build_meta(config, spec.class_name)
    model._no_split_modules = {type(m).__name__ for m in model.modules() if isinstance(m, GradientCheckpointingLayer)}
    compare_with_transformers(spec, config, model=model)


@pytest.mark.parametrize("case", MOE, ids=case_id)
def test_mixtures_of_experts_equal_transformers(case: tuple[str, dict[str, Any]]) -> None:
    check(*case)
