"""ViT and DeiT with a classifier: class token, patch convolution, pre-norm blocks; no output embedding."""

from __future__ import annotations

from estimators.model.families.common import Config, linear, norm
from estimators.model.families.decoder import Parameters
from estimators.model.families.pieces import convolution, labels, patch_count, root, square, under
from estimators.model.spec import ModelSpec, Parameter, Part

# transformers ViTConfig, DeiTConfig
DEFAULTS = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "image_size": 224, "patch_size": 16, "num_channels": 3, "qkv_bias": True,
}  # fmt: skip


def patches(config: Config, name: str, bias: bool = True) -> Parameters:
    """The convolution that cuts an image into patches."""
    shape = (config.integer("hidden_size"), config.integer("num_channels"), *square(config, "patch_size"))
    return convolution(name, shape, bias)


def attention(config: Config) -> Parameters:
    config.divided("hidden_size", "num_attention_heads")
    hidden, bias = config.integer("hidden_size"), config.flag("qkv_bias")
    return (
        *(p for name in "qkv" for p in linear(f"attention.{name}_proj", hidden, hidden, bias)),
        *linear("attention.o_proj", hidden, hidden, bias=True),
    )


def mlp(hidden: int, inner: int) -> Parameters:
    return (*linear("mlp.fc1", inner, hidden, bias=True), *linear("mlp.fc2", hidden, inner, bias=True))


def build(config: Config) -> ModelSpec:
    distilled = config.text("model_type") == "deit"
    stem, name, special = ("DeiT", "deit", 2) if distilled else ("ViT", "vit", 1)
    hidden = config.integer("hidden_size")
    embeddings = (
        Parameter("cls_token", (1, 1, hidden), "other"),
        Parameter("position_embeddings", (1, patch_count(config) + special, hidden), "other"),
        *((Parameter("distillation_token", (1, 1, hidden), "other"),) if distilled else ()),
        *patches(config, "patch_embeddings.projection"),
    )
    block = (
        *attention(config),
        *norm("layernorm_before", hidden, bias=True),
        *norm("layernorm_after", hidden, bias=True),
        *mlp(hidden, config.integer("intermediate_size")),
    )
    return ModelSpec(
        name="",
        family=name,
        class_name=f"{stem}ForImageClassification",
        parts=(
            root(under(f"{name}.embeddings", embeddings), role="vision"),
            Part(block, config.integer("num_hidden_layers"), f"{name}.layers.{{}}", class_name=f"{stem}Layer",
                 role="vision"),
            root(norm(f"{name}.layernorm", hidden, bias=True), linear("classifier", labels(config), hidden, bias=True),
                 role="vision"),
        ),
        config=config.values,
        embedding=f"{name}.embeddings.patch_embeddings",
    )  # fmt: skip
