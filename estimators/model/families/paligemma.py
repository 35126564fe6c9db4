"""PaliGemma: SigLIP, one linear layer, Gemma. The projection's width has a key of its own, outside the tower's."""

from __future__ import annotations

from estimators.model.families import multimodal
from estimators.model.families.common import Config, linear
from estimators.model.families.pieces import root
from estimators.model.spec import ModelSpec

# transformers PaliGemmaConfig
DEFAULTS = {"projection_dim": 2048, "tie_word_embeddings": True}
VISION = {
    "hidden_size": 1152, "intermediate_size": 4096, "num_hidden_layers": 27, "num_attention_heads": 16,
    "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
TEXT = {
    "vocab_size": 257152, "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18,
    "num_attention_heads": 8, "num_key_value_heads": 1,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    tower, width = multimodal.vision(config, "model.vision_tower", "siglip_vision_model", VISION)
    text = multimodal.language(config, "model.language_model", "gemma", TEXT)
    out = config.integer("projection_dim")
    projector = root(linear("model.multi_modal_projector.linear", out, width, bias=True), role="projector")
    return multimodal.assemble(config, "paligemma", "PaliGemmaForConditionalGeneration", (*tower, projector), text)
