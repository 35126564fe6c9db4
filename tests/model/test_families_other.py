"""Mixtures of experts, encoders, encoder-decoders, vision, vision-language and audio: equal to the real classes."""

from __future__ import annotations

import json
from contextlib import suppress
from importlib import import_module
from typing import Any

import pytest
from torch import nn
from transformers import CONFIG_MAPPING
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


ENCODER = {
    "hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 22, "vocab_size": 41,
    "max_position_embeddings": 19, "pad_token_id": 0,
}  # fmt: skip
DISTILBERT = {"n_layers": 3, "dim": 36, "n_heads": 6, "hidden_dim": 22, "vocab_size": 41}
DEBERTA = {**ENCODER, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
T5 = {"d_model": 36, "d_kv": 5, "d_ff": 22, "num_layers": 3, "num_heads": 7, "vocab_size": 41}
BART = {
    "d_model": 36, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 6, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 22, "decoder_ffn_dim": 14, "vocab_size": 41, "pad_token_id": 1,
}  # fmt: skip
IMAGE = {
    "hidden_size": 36, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 22, "image_size": 30,
    "patch_size": 7,
}  # fmt: skip

ENCODERS: list[tuple[str, dict[str, Any]]] = [
    ("bert", ENCODER),
    ("bert", {**ENCODER, "type_vocab_size": 3, "tie_word_embeddings": False}),
    ("roberta", ENCODER),
    ("roberta", {**ENCODER, "type_vocab_size": 1, "tie_word_embeddings": False}),
    ("xlm-roberta", {**ENCODER, "type_vocab_size": 1}),
    ("xlm-roberta", {**ENCODER, "tie_word_embeddings": False}),
    ("distilbert", DISTILBERT),
    ("distilbert", {**DISTILBERT, "max_position_embeddings": 21, "tie_word_embeddings": False}),
    ("distilbert", {"num_hidden_layers": 1, "hidden_size": 36, "num_attention_heads": 6, "vocab_size": 41}),
    ("electra", {**ENCODER, "embedding_size": 13}),
    ("electra", {**ENCODER, "embedding_size": 36, "tie_word_embeddings": False}),
    ("deberta-v2", ENCODER),
    ("deberta-v2", {**DEBERTA, "position_buckets": 4, "norm_rel_ebd": "layer_norm", "position_biased_input": False}),
    ("deberta-v2", {**DEBERTA, "conv_kernel_size": 3, "type_vocab_size": 2, "max_relative_positions": 9}),
    ("deberta-v2", {**DEBERTA, "share_att_key": True, "pos_att_type": "p2c|c2p", "tie_word_embeddings": False}),
    ("modernbert", ENCODER),
    ("modernbert", {**ENCODER, "attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True,
                    "decoder_bias": False, "num_hidden_layers": 1}),
    ("modernbert", {**ENCODER, "global_attn_every_n_layers": 1, "tie_word_embeddings": False}),
]  # fmt: skip

ENCODER_DECODERS: list[tuple[str, dict[str, Any]]] = [
    ("t5", T5),
    ("t5", {**T5, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 2, "tie_word_embeddings": False}),
    ("t5", {**T5, "num_layers": 1, "relative_attention_num_buckets": 9}),
    ("mt5", T5),
    ("mt5", {**T5, "feed_forward_proj": "relu", "num_decoder_layers": 1}),
    ("umt5", T5),
    ("umt5", {**T5, "num_decoder_layers": 2, "tie_word_embeddings": False}),
    ("bart", BART),
    ("bart", {**BART, "max_position_embeddings": 21, "tie_word_embeddings": False}),
    ("mbart", {**BART, "max_position_embeddings": 21}),
    ("mbart", {**BART, "tie_word_embeddings": False}),
    ("pegasus", {**BART, "max_position_embeddings": 21}),
    ("pegasus", {**BART, "tie_word_embeddings": False}),
    ("whisper", BART),
    ("whisper", {**BART, "num_mel_bins": 17, "max_source_positions": 23, "max_target_positions": 11}),
    ("whisper", {**BART, "tie_word_embeddings": False}),
]

VISION: list[tuple[str, dict[str, Any]]] = [
    ("vit", IMAGE),
    ("vit", {**IMAGE, "num_channels": 4, "qkv_bias": False, "num_labels": 5}),
    ("vit", {**IMAGE, "image_size": [28, 35], "id2label": {"0": "a", "1": "b", "2": "c"}}),
    ("deit", IMAGE),
    ("deit", {**IMAGE, "qkv_bias": False, "num_labels": 7}),
    ("dinov2", IMAGE),
    ("dinov2", {**IMAGE, "use_swiglu_ffn": True, "mlp_ratio": 3, "use_mask_token": False, "num_labels": 9}),
]


LANGUAGE = {k: v for k, v in DECODER.items() if k != "pad_token_id"}
CLIP_TOWER = {**IMAGE, "model_type": "clip_vision_model"}
SIGLIP_TOWER = {**IMAGE, "model_type": "siglip_vision_model"}
PIXTRAL_TOWER = {**IMAGE, "model_type": "pixtral", "head_dim": 6}
MLLAMA_TOWER = {
    **IMAGE, "num_global_layers": 2, "attention_heads": 6, "intermediate_layers_indices": [0], "vision_output_dim": 72,
}  # fmt: skip
QWEN_TOWER = {"depth": 3, "hidden_size": 36, "num_heads": 3, "patch_size": 5, "spatial_merge_size": 3}
QWEN2_5_TOWER = {**QWEN_TOWER, "hidden_size": 24, "intermediate_size": 22, "out_hidden_size": 36}


def text(family: str, **values: Any) -> dict[str, Any]:
    return {**LANGUAGE, "model_type": family, **values}


VISION_LANGUAGE: list[tuple[str, dict[str, Any]]] = [
    ("clip", {"text_config": ENCODER, "vision_config": IMAGE, "projection_dim": 11}),
    ("clip", {"text_config": {"num_hidden_layers": 1}, "vision_config": {"num_hidden_layers": 1}}),
    ("siglip", {"text_config": ENCODER, "vision_config": IMAGE}),
    ("siglip", {"text_config": {**ENCODER, "projection_size": 9},
                "vision_config": {**IMAGE, "vision_use_head": False}}),
    ("llava", {"text_config": text("llama"), "vision_config": CLIP_TOWER}),
    ("llava", {"text_config": text("qwen2", tie_word_embeddings=True), "vision_config": SIGLIP_TOWER,
               "vision_feature_layer": [-2, -3], "multimodal_projector_bias": False}),
    ("llava", {"text_config": text("mistral"), "vision_config": PIXTRAL_TOWER, "tie_word_embeddings": True}),
    ("llava", {"text_config": text("gemma", head_dim=8), "vision_config": {"num_hidden_layers": 1}}),
    ("llava", {"text_config": {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]}}),
    ("llava_next", {"text_config": text("llama"), "vision_config": CLIP_TOWER}),
    ("llava_next", {"text_config": text("mistral"), "vision_config": CLIP_TOWER, "tie_word_embeddings": True}),
    ("mistral3", {"text_config": text("mistral", head_dim=10), "vision_config": PIXTRAL_TOWER}),
    ("mistral3", {"text_config": text("mistral"), "vision_config": PIXTRAL_TOWER, "tie_word_embeddings": False,
                  "spatial_merge_size": 3, "multimodal_projector_bias": True, "vision_feature_layer": [-1, -2]}),
    ("mistral3", {}),
    ("paligemma", {}),
    ("qwen2_5_vl", {"text_config": {**LANGUAGE, "hidden_size": 3584, "num_attention_heads": 8}}),
    ("gemma3", {"text_config": {**LANGUAGE, "head_dim": 10}, "vision_config": SIGLIP_TOWER}),
    ("gemma3", {"text_config": {**LANGUAGE, "sliding_window_pattern": 2}, "tie_word_embeddings": False,
                "vision_config": {**SIGLIP_TOWER, "vision_use_head": False}}),
    ("paligemma", {"text_config": text("gemma"), "vision_config": {**SIGLIP_TOWER, "projection_dim": 36}}),
    ("paligemma", {"text_config": text("gemma2"), "vision_config": SIGLIP_TOWER, "projection_dim": 36,
                   "tie_word_embeddings": False}),
    ("idefics3", {"text_config": text("llama"), "vision_config": IMAGE}),
    ("idefics3", {"text_config": text("llama"), "vision_config": IMAGE, "tie_word_embeddings": True}),
    ("smolvlm", {"text_config": text("llama"), "vision_config": IMAGE, "scale_factor": 3}),
    ("smolvlm", {"text_config": text("llama", tie_word_embeddings=True), "vision_config": IMAGE}),
    ("internvl", {"text_config": text("qwen2"), "vision_config": {**IMAGE, "image_size": [30, 37]}}),
    ("internvl", {"text_config": text("llama"), "tie_word_embeddings": False, "vision_config": {
        **IMAGE, "use_qk_norm": True, "attention_bias": True, "norm_type": "rms_norm", "use_mask_token": True,
        "use_absolute_position_embeddings": False, "use_mean_pooling": False}}),
    ("mllama", {"text_config": {**LANGUAGE, "cross_attention_layers": [1, 3], "pad_token_id": 0},
                "vision_config": MLLAMA_TOWER}),
    ("mllama", {"text_config": {**LANGUAGE, "cross_attention_layers": [0], "pad_token_id": 0}, "vision_config": {
        **MLLAMA_TOWER, "max_num_tiles": 2, "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]]}}),
    ("qwen2_vl", {"text_config": LANGUAGE, "vision_config": {**QWEN_TOWER, "embed_dim": 24}}),
    ("qwen2_vl", {**LANGUAGE, "vision_config": {**QWEN_TOWER, "embed_dim": 48, "mlp_ratio": 3},
                  "tie_word_embeddings": True}),
    ("qwen2_5_vl", {"text_config": LANGUAGE, "vision_config": QWEN2_5_TOWER}),
    ("qwen2_5_vl", {**LANGUAGE, "vision_config": QWEN2_5_TOWER, "tie_word_embeddings": True,
                    "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 1]}}),
    ("qwen3_vl", {"text_config": LANGUAGE, "vision_config": {**QWEN2_5_TOWER, "deepstack_visual_indexes": [0, 2]}}),
    ("qwen3_vl", {"text_config": {**LANGUAGE, "head_dim": 10, "attention_bias": True}, "tie_word_embeddings": True,
                  "vision_config": {**QWEN2_5_TOWER, "deepstack_visual_indexes": [], "num_position_embeddings": 49}}),
]  # fmt: skip


def case_id(case: tuple[str, dict[str, Any]]) -> str:
    family, values = case
    shown = {k: v for k, v in values.items() if k not in DECODER and not isinstance(v, dict)}
    return "-".join([family, *(f"{k}={v}" for k, v in list(shown.items())[-2:])])


def repeated(model: Any) -> set[str]:
    checkpointed = {type(m).__name__ for m in model.modules() if isinstance(m, GradientCheckpointingLayer)}
    listed = {type(m).__name__ for stack in model.modules() if isinstance(stack, nn.ModuleList) for m in stack}
    return checkpointed | (listed & set(model._no_split_modules))


def check(family: str, values: dict[str, Any]) -> None:
    """Equal to the real class, also from the config as it saves it.

    Blocks are what it checkpoints, or lists as not to split; embeddings are neither.
    """
    config = {"model_type": family, **values}
    spec = build(config)
    assert spec.family == family
    model = build_meta(config, spec.class_name)
    saved = build({**json.loads(model.config.to_json_string(use_diff=False)), "architectures": None})
    assert list(saved.named_parameters()) == list(spec.named_parameters())
    model._no_split_modules = repeated(model)
    if family == "clip":  # has no single input embedding, and says so with an exception
        model.get_input_embeddings = lambda: None
    compare_with_transformers(spec, config, model=model)


@pytest.mark.parametrize("case", MOE, ids=case_id)
def test_mixtures_of_experts_equal_transformers(case: tuple[str, dict[str, Any]]) -> None:
    check(*case)


@pytest.mark.parametrize("case", ENCODERS, ids=case_id)
def test_encoders_equal_transformers(case: tuple[str, dict[str, Any]]) -> None:
    check(*case)


@pytest.mark.parametrize("case", ENCODER_DECODERS, ids=case_id)
def test_encoder_decoders_equal_transformers(case: tuple[str, dict[str, Any]]) -> None:
    check(*case)


@pytest.mark.parametrize("case", VISION, ids=case_id)
def test_vision_equals_transformers(case: tuple[str, dict[str, Any]]) -> None:
    check(*case)


@pytest.mark.parametrize("case", VISION_LANGUAGE, ids=case_id)
def test_vision_language_equals_transformers(case: tuple[str, dict[str, Any]]) -> None:
    check(*case)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok 9 exceeds num_local_experts 8"),
    ("mixtral", {"hidden_size": "4096"}, "hidden_size is '4096'"),
    ("mixtral", {"num_attention_heads": 5}, "hidden_size 4096 is not a multiple of num_attention_heads 5"),
    ("mixtral", {"num_key_value_heads": 7}, "num_attention_heads 32 is not a multiple of num_key_value_heads 7"),
    ("qwen2_moe", {"mlp_only_layers": [0, "1"]}, r"mlp_only_layers is \[0, '1'\]"),
    ("qwen2_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
    ("qwen3_moe", {"num_hidden_layers": 10**7}, "num_hidden_layers is 10000000"),
    ("qwen3_next", {"layer_types": ["full_attention"]}, "layer_types is .*; give 48"),
    ("qwen3_next", {"layer_types": [["full_attention"]] * 48}, "layer_types is "),
    ("deepseek_v2", {"kv_lora_rank": -1}, "kv_lora_rank is -1"),
    ("deepseek_v3", {"n_group": 7}, "n_routed_experts 256 is not a multiple of n_group 7"),
    ("deepseek_v3", {"first_k_dense_replace": 1.5}, "first_k_dense_replace is 1.5"),
    ("bert", {"num_attention_heads": 7}, "hidden_size 768 is not a multiple of num_attention_heads 7"),
    ("distilbert", {"n_heads": 12, "num_attention_heads": 6}, "n_heads is 12 and num_attention_heads is 6"),
    ("deberta-v2", {"pos_att_type": 3}, "pos_att_type is 3"),
    ("t5", {"feed_forward_proj": "gelu-gated"}, "feed_forward_proj is 'gelu-gated'"),
    ("t5", {"d_kv": True}, "d_kv is True|head_dim is True"),
    ("bart", {"encoder_attention_heads": 7}, "d_model 1024 is not a multiple of encoder_attention_heads 7"),
    ("vit", {"patch_size": [16, 16, 16]}, "patch_size is "),
    ("vit", {"image_size": 8}, "patch_size 16 is larger than image_size 8"),
    ("vit", {"id2label": 5}, "id2label is 5"),
    ("llava", {"text_config": "llama"}, "text_config is 'llama'"),
    ("llava", {"vision_config": 3}, "vision_config is 3"),
    ("llava", {"vision_feature_layer": "last"}, "vision_feature_layer is 'last'"),
    ("llava", {"text_config": {"hidden_size": None}}, "config.text_config: hidden_size is missing"),
    ("qwen2_vl", {"hidden_size": 64}, "hidden_size is 3584, and the text model's hidden_size is 64"),
    ("qwen2_5_vl", {"vision_config": {"num_heads": 3, "out_hidden_size": 8192}}, "is not a multiple of num_heads 3"),
    ("internvl", {"vision_config": {"norm_type": "batch"}}, "norm_type is 'batch'"),
    ("mllama", {"vision_config": {"supported_aspect_ratios": 4}}, "supported_aspect_ratios is 4"),
]


@pytest.mark.parametrize(("family", "values", "message"), BAD, ids=lambda v: v if isinstance(v, str) else "")
def test_contradictions_are_named(family: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build({"model_type": family, **values})


UNKNOWN: list[tuple[str, dict[str, Any]]] = [
    ("bert", {"architectures": ["BertForSequenceClassification"]}),
    ("bert", {"is_decoder": True}),
    ("deberta-v2", {"legacy": False}),
    ("vit", {"architectures": ["ViTModel"]}),
    ("llava", {"vision_config": {"model_type": "resnet"}}),
    ("llava", {"text_config": {"model_type": "no-such-model"}}),
]


@pytest.mark.parametrize(("family", "values"), UNKNOWN)
def test_other_classes_are_left_to_transformers(family: str, values: dict[str, Any]) -> None:
    with pytest.raises(NotModelled):
        build({"model_type": family, **values})


SPOILERS: tuple[Any, ...] = (None, -1, 0, 10**12, "7", [], {}, True, 0.5)
EVERY = {family: values for family, values in (*MOE, *ENCODERS, *ENCODER_DECODERS, *VISION, *VISION_LANGUAGE)}


@pytest.mark.parametrize("family", EVERY)
def test_damaged_configs_end_in_one_kind_of_error(family: str) -> None:
    """Every key in turn, of every family and section, with values that it should not have."""
    config = {"model_type": family, **EVERY[family]}
    damaged = [{**config, key: spoiler} for key in config for spoiler in SPOILERS]
    for section, values in config.items():
        if isinstance(values, dict):
            damaged += [{**config, section: {**values, key: spoiler}} for key in values for spoiler in SPOILERS]
    for one in damaged:
        with suppress(InputError, NotModelled):
            build(one)


def roles(family: str, values: dict[str, Any]) -> list[tuple[str, int]]:
    return [(part.role, part.count) for part in build({"model_type": family, **values}).blocks]


def test_runs_of_blocks_and_their_roles() -> None:
    """Consecutive equal blocks are one part; the owner of a relative-position table stands alone."""
    assert roles("t5", T5) == [("encoder", 1), ("encoder", 2), ("decoder", 1), ("decoder", 2)]
    assert roles("umt5", T5) == [("encoder", 3), ("decoder", 3)]
    assert roles("whisper", BART) == [("audio", 2), ("decoder", 3)]
    towers = {"text_config": text("llama"), "vision_config": CLIP_TOWER}
    assert roles("llava", towers) == [("vision", 3), ("decoder", 5)]
    assert roles("deepseek_v3", {**LATENT, "first_k_dense_replace": 2}) == [("decoder", 2), ("decoder", 3)]
    assert roles("qwen2_moe", {**DECODER, "mlp_only_layers": [0, 3]}) == [("decoder", n) for n in (1, 2, 1, 1)]


def test_cost_does_not_depend_on_depth() -> None:
    """Deep models have as many parts as shallow ones."""
    for family, key in (("mixtral", "num_hidden_layers"), ("bert", "num_hidden_layers"), ("t5", "num_layers")):
        shallow, deep = (build({"model_type": family, key: count}) for count in (2, 900))
        assert len(shallow.parts) == len(deep.parts)


# Totals known of the released models, with the keys in which their configs differ from the defaults.
PUBLISHED: list[tuple[str, int, dict[str, Any]]] = [
    ("mixtral", 46_702_792_704, {}),
    ("qwen2_moe", 14_315_784_192, {}),  # Qwen1.5-MoE-A2.7B
    ("qwen3_moe", 30_532_122_624, {"num_hidden_layers": 48, "head_dim": 128}),  # 30B-A3B
    ("deepseek_v2", 15_706_484_224, {  # Lite
        "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27, "num_attention_heads": 16,
        "q_lora_rank": None, "moe_intermediate_size": 1408, "first_k_dense_replace": 1}),
    ("deepseek_v3", 671_026_404_352, {}),
    ("gpt_oss", 20_914_757_184, {"num_hidden_layers": 24, "num_local_experts": 32}),  # 20b
    ("bert", 109_514_298, {}),
    ("roberta", 124_697_433, {"max_position_embeddings": 514, "type_vocab_size": 1}),
    ("t5", 222_903_552, {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}),
    ("whisper", 1_543_490_560, {  # large-v3
        "d_model": 1280, "encoder_layers": 32, "decoder_layers": 32, "encoder_attention_heads": 20,
        "decoder_attention_heads": 20, "encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120, "num_mel_bins": 128,
        "vocab_size": 51866}),
    ("vit", 86_567_656, {"id2label": {str(i): "" for i in range(1000)}}),
    ("llava", 7_063_427_072, {"text_config": {"vocab_size": 32064}}),
    ("qwen2_vl", 8_291_375_616, {
        "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4}),
    ("qwen2_5_vl", 8_292_166_656, {
        "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vision_config": {"hidden_size": 1280}}),
    ("gemma3", 4_300_079_472, {
        "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34},
        "vision_config": {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
                          "num_attention_heads": 16, "patch_size": 14, "image_size": 896, "vision_use_head": False}}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "published", "values"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_published_sizes(family: str, published: int, values: dict[str, Any]) -> None:
    assert build({"model_type": family, **values}).num_params == published


DEFAULT_KEYS = sorted({family for family, _ in (*MOE, *ENCODERS, *ENCODER_DECODERS, *VISION)})


@pytest.mark.parametrize("family", DEFAULT_KEYS)
def test_defaults_are_those_of_transformers(family: str) -> None:
    real = CONFIG_MAPPING[family]()
    ours = import_module(f"estimators.model.families.{FAMILIES[family]}").DEFAULTS
    differ = {key: (value, getattr(real, key)) for key, value in ours.items()
              if hasattr(real, key) and getattr(real, key) != value}  # fmt: skip
    assert not differ
