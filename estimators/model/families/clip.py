"""CLIP: two pre-norm encoders and their projections. Its vision tower also serves LLaVA."""

from __future__ import annotations

from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import Parameters
from estimators.model.families.pieces import patch_count, position_ids, root, under
from estimators.model.families.vit import mlp, patches
from estimators.model.spec import ModelSpec, Parameter, Part

# transformers CLIPConfig, CLIPVisionConfig, CLIPTextConfig
DEFAULTS = {"projection_dim": 512}
VISION_DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "num_channels": 3, "image_size": 224, "patch_size": 32,
}  # fmt: skip
TEXT_DEFAULTS = {
    "vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 8, "max_position_embeddings": 77,
}  # fmt: skip


def attention(config: Config) -> Parameters:
    """k, v, q, out with biases, in this order."""
    config.divided("hidden_size", "num_attention_heads")
    hidden = config.integer("hidden_size")
    return tuple(p for n in ("k", "v", "q", "out") for p in linear(f"self_attn.{n}_proj", hidden, hidden, bias=True))


def encoder(config: Config, prefix: str, role: str, class_name: str = "CLIPEncoderLayer") -> Part:
    hidden = config.integer("hidden_size")
    block = (
        *attention(config),
        *norm("layer_norm1", hidden, bias=True),
        *mlp(hidden, config.integer("intermediate_size")),
        *norm("layer_norm2", hidden, bias=True),
    )
    return Part(block, config.integer("num_hidden_layers"), f"{prefix}.encoder.layers.{{}}",
                class_name=class_name, role=role)  # fmt: skip


def vision_tower(config: Config, prefix: str) -> tuple[Part, ...]:
    hidden, places = config.integer("hidden_size"), patch_count(config) + 1
    embeddings = (
        Parameter("class_embedding", (hidden,), "other"),
        *patches(config, "patch_embedding", bias=False),
        *embedding("position_embedding", places, hidden),
    )
    return (
        root(
            under(f"{prefix}.embeddings", embeddings),
            norm(f"{prefix}.pre_layrnorm", hidden, bias=True),  # spelt so in transformers
            buffers=(position_ids(f"{prefix}.embeddings.position_ids", places),),
            role="vision",
        ),
        encoder(config, prefix, "vision"),
        root(norm(f"{prefix}.post_layernorm", hidden, bias=True), role="vision"),
    )


def text_embeddings(config: Config) -> Part:
    """Tokens and learned positions of a text encoder."""
    hidden, places = config.integer("hidden_size"), config.integer("max_position_embeddings")
    prefix = "text_model.embeddings"
    return root(
        embedding(f"{prefix}.token_embedding", config.integer("vocab_size"), hidden),
        embedding(f"{prefix}.position_embedding", places, hidden),
        buffers=(position_ids(f"{prefix}.position_ids", places),),
        role="encoder",
    )


def build(config: Config) -> ModelSpec:
    text, vision = config.section("text_config", TEXT_DEFAULTS), config.section("vision_config", VISION_DEFAULTS)
    width = config.integer("projection_dim")
    return ModelSpec(
        name="",
        family="clip",
        class_name="CLIPModel",
        parts=(
            root((Parameter("logit_scale", (), "other"),), role="encoder"),
            text_embeddings(text),
            encoder(text, "text_model", "encoder"),
            root(norm("text_model.final_layer_norm", text.integer("hidden_size"), bias=True), role="encoder"),
            *vision_tower(vision, "vision_model"),
            root(linear("visual_projection", width, vision.integer("hidden_size")),
                 linear("text_projection", width, text.integer("hidden_size")), role="projector"),
        ),
        config=config.values,
    )  # fmt: skip
