"""Gemma 3, 4B and larger: SigLIP, a projection held as a bare parameter, Gemma 3's text model."""

from __future__ import annotations

from estimators.model.families import multimodal
from estimators.model.families.common import Config, norm
from estimators.model.families.pieces import root
from estimators.model.spec import ModelSpec, Parameter

# transformers Gemma3Config
DEFAULTS = {"tie_word_embeddings": True}
PROJECTOR = "model.multi_modal_projector"


def build(config: Config) -> ModelSpec:
    tower, width = multimodal.vision(config, "model.vision_tower", "siglip_vision_model", {})
    text = multimodal.language(config, "model.language_model", "gemma3_text")
    projector = root(
        (Parameter(f"{PROJECTOR}.mm_input_projection_weight", (width, text.hidden), "other"),),
        norm(f"{PROJECTOR}.mm_soft_emb_norm", width),
        role="projector",
    )
    return multimodal.assemble(config, "gemma3", "Gemma3ForConditionalGeneration", (*tower, projector), text)
