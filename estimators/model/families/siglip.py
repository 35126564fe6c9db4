"""SigLIP: two encoders; the vision tower pools by attention to a learned probe. It also serves Gemma 3, PaliGemma."""

from __future__ import annotations

from estimators.model.families.clip import attention, text_embeddings
from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import Parameters
from estimators.model.families.pieces import patch_count, position_ids, root, under
from estimators.model.families.vit import mlp, patches
from estimators.model.spec import ModelSpec, Parameter, Part

# transformers SiglipVisionConfig, SiglipTextConfig
DEFAULTS: dict[str, object] = {}
VISION_DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "num_channels": 3, "image_size": 224, "patch_size": 16, "vision_use_head": True,
}  # fmt: skip
TEXT_DEFAULTS = {
    "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "max_position_embeddings": 64,
}  # fmt: skip


def encoder(config: Config, prefix: str, role: str) -> Part:
    hidden = config.integer("hidden_size")
    block = (
        *norm("layer_norm1", hidden, bias=True),
        *attention(config),
        *norm("layer_norm2", hidden, bias=True),
        *mlp(hidden, config.integer("intermediate_size")),
    )
    return Part(block, config.integer("num_hidden_layers"), f"{prefix}.encoder.layers.{{}}",
                class_name="SiglipEncoderLayer", role=role)  # fmt: skip


def pooling(config: Config) -> Parameters:
    """``nn.MultiheadAttention`` keeps q, k, v in one parameter of its own."""
    hidden = config.integer("hidden_size")
    return (
        Parameter("probe", (1, 1, hidden), "other"),
        Parameter("attention.in_proj_weight", (3 * hidden, hidden), "other"),
        Parameter("attention.in_proj_bias", (3 * hidden,), "other"),
        *linear("attention.out_proj", hidden, hidden, bias=True),
        *norm("layernorm", hidden, bias=True),
        *mlp(hidden, config.integer("intermediate_size")),
    )


def vision_tower(config: Config, prefix: str) -> tuple[Part, ...]:
    hidden, places = config.integer("hidden_size"), patch_count(config)
    embeddings = (*patches(config, "patch_embedding"), *embedding("position_embedding", places, hidden))
    head = under(f"{prefix}.head", pooling(config)) if config.flag("vision_use_head") else ()
    return (
        root(under(f"{prefix}.embeddings", embeddings), role="vision",
             buffers=(position_ids(f"{prefix}.embeddings.position_ids", places),)),
        encoder(config, prefix, "vision"),
        root(norm(f"{prefix}.post_layernorm", hidden, bias=True), head, role="vision"),
    )  # fmt: skip


def build(config: Config) -> ModelSpec:
    text, vision = config.section("text_config", TEXT_DEFAULTS), config.section("vision_config", VISION_DEFAULTS)
    hidden = text.integer("hidden_size")
    return ModelSpec(
        name="",
        family="siglip",
        class_name="SiglipModel",
        parts=(
            root((Parameter("logit_scale", (1,), "other"), Parameter("logit_bias", (1,), "other")), role="encoder"),
            text_embeddings(text),
            encoder(text, "text_model", "encoder"),
            root(norm("text_model.final_layer_norm", hidden, bias=True),
                 linear("text_model.head", text.integer("projection_size", hidden), hidden, bias=True), role="encoder"),
            *vision_tower(vision, "vision_model"),
        ),
        config=config.values,
        embedding="text_model.embeddings.token_embedding",
    )  # fmt: skip
