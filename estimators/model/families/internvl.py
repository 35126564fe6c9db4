"""InternVL 2.5 and 3 (the transformers port): InternViT with layer scales, pixel shuffle, a two-layer projector."""

from __future__ import annotations

from estimators.errors import InputError, short
from estimators.model.families import multimodal
from estimators.model.families.common import Config, linear, norm
from estimators.model.families.decoder import Parameters
from estimators.model.families.pieces import patch_count, present, root, under
from estimators.model.families.vit import mlp, patches
from estimators.model.spec import ModelSpec, Parameter, Part

# transformers InternVLConfig, InternVLVisionConfig
DEFAULTS = {"downsample_ratio": 0.5, "tie_word_embeddings": True}
VISION_DEFAULTS = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "attention_bias": False,
    "use_qk_norm": False, "intermediate_size": 4096, "norm_type": "layer_norm", "image_size": (448, 448),
    "patch_size": (14, 14), "num_channels": 3, "use_mask_token": False, "use_absolute_position_embeddings": True,
    "use_mean_pooling": True,
}  # fmt: skip
TOWER, PROJECTOR = "model.vision_tower", "model.multi_modal_projector"


def block(config: Config) -> Parameters:
    config.divided("hidden_size", "num_attention_heads")
    hidden, bias, kind = config.integer("hidden_size"), config.flag("attention_bias"), config.text("norm_type")
    if kind not in ("layer_norm", "rms_norm"):
        raise InputError(f"{config.where}: norm_type is {short(kind)}; give layer_norm or rms_norm")
    qk = config.flag("use_qk_norm")
    return (
        Parameter("lambda_1", (hidden,), "other"),
        Parameter("lambda_2", (hidden,), "other"),
        *(p for name in "qkv" for p in linear(f"attention.{name}_proj", hidden, hidden, bias)),
        *linear("attention.projection_layer", hidden, hidden, bias=True),
        *((*norm("attention.q_norm", hidden), *norm("attention.k_norm", hidden)) if qk else ()),
        *mlp(hidden, config.integer("intermediate_size")),
        *norm("layernorm_before", hidden, bias=kind == "layer_norm"),
        *norm("layernorm_after", hidden, bias=kind == "layer_norm"),
    )


def vision_tower(config: Config) -> tuple[Part, ...]:
    hidden, places = config.integer("hidden_size"), patch_count(config) + 1
    learned = config.flag("use_absolute_position_embeddings")
    embeddings = (
        Parameter("cls_token", (1, 1, hidden), "other"),
        *((Parameter("mask_token", (1, 1, hidden), "other"),) if config.flag("use_mask_token") else ()),
        *((Parameter("position_embeddings", (1, places, hidden), "other"),) if learned else ()),
        *patches(config, "patch_embeddings.projection"),
    )
    last = () if config.flag("use_mean_pooling") else norm(f"{TOWER}.layernorm", hidden, bias=True)
    return present(
        root(under(f"{TOWER}.embeddings", embeddings), role="vision"),
        Part(block(config), config.integer("num_hidden_layers"), f"{TOWER}.encoder.layer.{{}}",
             class_name="InternVLVisionLayer", role="vision"),
        root(last, role="vision"),
    )  # fmt: skip


def build(config: Config) -> ModelSpec:
    section = config.section("vision_config", VISION_DEFAULTS)
    text = multimodal.language(config, "model.language_model", "qwen2")
    shuffled = section.integer("hidden_size") * int(1 / config.fraction("downsample_ratio")) ** 2
    projector = root(
        norm(f"{PROJECTOR}.layer_norm", shuffled, bias=True),
        linear(f"{PROJECTOR}.linear_1", text.hidden, shuffled, bias=True),
        linear(f"{PROJECTOR}.linear_2", text.hidden, text.hidden, bias=True),
        role="projector",
    )
    return multimodal.assemble(
        config, "internvl", "InternVLForConditionalGeneration", (*vision_tower(section), projector), text
    )
