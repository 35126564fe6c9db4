"""Qwen2.5-VL: Qwen2-VL with RMSNorm and a gated MLP in the vision blocks."""

from __future__ import annotations

from estimators.model.families import multimodal
from estimators.model.families.common import Config, norm
from estimators.model.families.moe import gated_mlp
from estimators.model.families.pieces import frequencies, root
from estimators.model.families.qwen2_vl import (
    TOWER,
    check_width,
    fused_attention,
    merger,
    patch_embedding,
    text_model,
)
from estimators.model.spec import ModelSpec, Part

# transformers Qwen2_5_VLConfig, Qwen2_5_VLVisionConfig
DEFAULTS = {"tie_word_embeddings": False}
VISION_DEFAULTS = {
    "depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "num_heads": 16, "in_channels": 3,
    "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 3584,
}  # fmt: skip


def vision_tower(config: Config) -> tuple[Part, ...]:
    width, out, inner = (config.integer(k) for k in ("hidden_size", "out_hidden_size", "intermediate_size"))
    head = config.divided("hidden_size", "num_heads")
    block = (
        *norm("norm1", width),
        *norm("norm2", width),
        *fused_attention(width),
        *gated_mlp("mlp", width, inner, bias=True),
    )
    return (
        root(patch_embedding(config, width), role="vision",
             buffers=frequencies(f"{TOWER}.rotary_pos_emb", head // 2)),
        Part(block, config.integer("depth"), f"{TOWER}.blocks.{{}}", class_name="Qwen2_5_VLVisionBlock",
             role="vision"),
        root(merger(config, width, out, norm_bias=False), role="projector"),
    )  # fmt: skip


def build(config: Config) -> ModelSpec:
    vision = config.section("vision_config", VISION_DEFAULTS)
    text = text_model(config, "Qwen2_5_VL")
    check_width(config, vision.integer("out_hidden_size"), text, "out_hidden_size")
    return multimodal.assemble(config, "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", vision_tower(vision), text)
