"""Idefics 3 and SmolVLM: CLIP's blocks without class token or pooling; pixel shuffle before a plain projection."""

from __future__ import annotations

from estimators.model.families import multimodal
from estimators.model.families.clip import encoder
from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.pieces import patch_count, root
from estimators.model.families.vit import patches
from estimators.model.spec import ModelSpec, Part

# transformers Idefics3Config, SmolVLMConfig
DEFAULTS = {"scale_factor": 2, "tie_word_embeddings": False}
VISION_DEFAULTS = {
    "hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16,
    "num_channels": 3, "image_size": 224, "patch_size": 32,
}  # fmt: skip
VISION = "model.vision_model"


def vision_tower(config: Config, stem: str) -> tuple[Part, ...]:
    hidden = config.integer("hidden_size")
    return (
        root(
            patches(config, f"{VISION}.embeddings.patch_embedding"),
            embedding(f"{VISION}.embeddings.position_embedding", patch_count(config), hidden),
            role="vision",
        ),
        encoder(config, VISION, "vision", f"{stem}EncoderLayer"),
        root(norm(f"{VISION}.post_layernorm", hidden, bias=True), role="vision"),
    )


def build(config: Config) -> ModelSpec:
    family = config.text("model_type")
    stem = "SmolVLM" if family == "smolvlm" else "Idefics3"
    section = config.section("vision_config", VISION_DEFAULTS)
    text = multimodal.language(config, "model.text_model", "llama")
    shuffled = section.integer("hidden_size") * config.integer("scale_factor") ** 2
    projector = root(linear("model.connector.modality_projection.proj", text.hidden, shuffled), role="projector")
    return multimodal.assemble(
        config, family, f"{stem}ForConditionalGeneration", (*vision_tower(section, stem), projector), text
    )
