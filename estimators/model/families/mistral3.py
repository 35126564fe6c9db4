"""Mistral Small 3.1 and later: Pixtral's tower, patches merged before the projector."""

from __future__ import annotations

from estimators.model.families import multimodal
from estimators.model.families.common import Config, linear, norm
from estimators.model.families.pieces import root
from estimators.model.spec import ModelSpec

# transformers Mistral3Config
DEFAULTS = {
    "vision_feature_layer": -1, "multimodal_projector_bias": False, "spatial_merge_size": 2,
    "tie_word_embeddings": True,
}  # fmt: skip
VISION = {"image_size": 1540, "patch_size": 14}
TEXT = {
    "vocab_size": 131072, "hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip
PROJECTOR = "model.multi_modal_projector"


def build(config: Config) -> ModelSpec:
    tower, width = multimodal.vision(config, "model.vision_tower", "pixtral", VISION)
    text = multimodal.language(config, "model.language_model", "mistral", TEXT)
    bias, merge = config.flag("multimodal_projector_bias"), config.integer("spatial_merge_size")
    projector = root(
        norm(f"{PROJECTOR}.norm", width),
        linear(f"{PROJECTOR}.patch_merger.merging_layer", width, width * merge**2),
        linear(f"{PROJECTOR}.linear_1", text.hidden, width * multimodal.feature_layers(config), bias),
        linear(f"{PROJECTOR}.linear_2", text.hidden, text.hidden, bias),
        role="projector",
    )
    return multimodal.assemble(config, "mistral3", "Mistral3ForConditionalGeneration", (*tower, projector), text)
