"""DINOv2 with a classifier over class token and mean patch: layer scales, optional SwiGLU."""

from __future__ import annotations

from estimators.model.families.common import Config, linear, norm
from estimators.model.families.decoder import Parameters
from estimators.model.families.pieces import labels, patch_count, root, under
from estimators.model.families.vit import attention, mlp, patches
from estimators.model.spec import ModelSpec, Parameter, Part

# transformers Dinov2Config
DEFAULTS = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "mlp_ratio": 4, "image_size": 224,
    "patch_size": 14, "num_channels": 3, "qkv_bias": True, "use_swiglu_ffn": False, "use_mask_token": True,
}  # fmt: skip


def feed_forward(config: Config) -> Parameters:
    """SwiGLU keeps two thirds of the width, rounded up to a multiple of 8."""
    hidden = config.integer("hidden_size")
    inner = hidden * config.integer("mlp_ratio")
    if not config.flag("use_swiglu_ffn"):
        return mlp(hidden, inner)
    inner = (int(inner * 2 / 3) + 7) // 8 * 8
    return (
        *linear("mlp.gate_proj", inner, hidden, bias=True),
        *linear("mlp.up_proj", inner, hidden, bias=True),
        *linear("mlp.down_proj", hidden, inner, bias=True),
    )


def build(config: Config) -> ModelSpec:
    hidden = config.integer("hidden_size")
    embeddings = (
        Parameter("cls_token", (1, 1, hidden), "other"),
        *((Parameter("mask_token", (1, hidden), "other"),) if config.flag("use_mask_token") else ()),
        Parameter("position_embeddings", (1, patch_count(config) + 1, hidden), "other"),
        *patches(config, "patch_embeddings.projection"),
    )
    block = (
        *norm("norm1", hidden, bias=True),
        *attention(config),
        Parameter("layer_scale1.lambda1", (hidden,), "other"),
        *norm("norm2", hidden, bias=True),
        *feed_forward(config),
        Parameter("layer_scale2.lambda1", (hidden,), "other"),
    )
    return ModelSpec(
        name="",
        family="dinov2",
        class_name="Dinov2ForImageClassification",
        parts=(
            root(under("dinov2.embeddings", embeddings), role="vision"),
            Part(block, config.integer("num_hidden_layers"), "dinov2.encoder.layer.{}", class_name="Dinov2Layer",
                 role="vision"),
            root(norm("dinov2.layernorm", hidden, bias=True),
                 linear("classifier", labels(config), 2 * hidden, bias=True), role="vision"),
        ),
        config=config.values,
        embedding="dinov2.embeddings.patch_embeddings",
    )  # fmt: skip
