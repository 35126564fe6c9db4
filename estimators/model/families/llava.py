"""LLaVA 1.5 and LLaVA-NeXT: any dense language model, a CLIP-like tower, a two-layer projector.

LLaVA ties its head also where only ``text_config`` says so; LLaVA-NeXT does not.
"""

from __future__ import annotations

from estimators.model.families import multimodal
from estimators.model.families.common import Config, linear
from estimators.model.families.pieces import root
from estimators.model.spec import ModelSpec, Parameter

# transformers LlavaConfig, LlavaNextConfig
DEFAULTS = {"vision_feature_layer": -2, "multimodal_projector_bias": True, "tie_word_embeddings": False}
VISION = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 336, "patch_size": 14,
}  # fmt: skip
PROJECTOR = "model.multi_modal_projector"


def build(config: Config) -> ModelSpec:
    family = config.text("model_type")
    stem, newline = ("LlavaNext", True) if family == "llava_next" else ("Llava", False)
    tower, width = multimodal.vision(config, "model.vision_tower", "clip_vision_model", VISION)
    text = multimodal.language(config, "model.language_model", "llama")
    bias, inputs = config.flag("multimodal_projector_bias"), width * multimodal.feature_layers(config)
    projector = root(
        linear(f"{PROJECTOR}.linear_1", text.hidden, inputs, bias),
        linear(f"{PROJECTOR}.linear_2", text.hidden, text.hidden, bias),
        role="projector",
    )
    first = (root((Parameter("model.image_newline", (text.hidden,), "other"),), role="projector"),) if newline else ()
    return multimodal.assemble(
        config, family, f"{stem}ForConditionalGeneration", (*first, *tower, projector), text,
        tie=config.flag("tie_word_embeddings") or (family == "llava" and text.tied),
    )  # fmt: skip
