"""Qwen3-VL: learned positions beside rotary ones, and a merger for each vision layer fed deep into the text model."""

from __future__ import annotations

from estimators.model.families import multimodal
from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import (
    Parameters,
    attention,
    block_norms,
    gated_mlp,
    llama_frame,
    read_heads,
    rotary,
)
from estimators.model.families.moe import qk_norms
from estimators.model.families.pieces import frequencies, integers, root, under
from estimators.model.families.qwen2_vl import TOWER, check_width, fused_attention, patch_embedding
from estimators.model.spec import ModelSpec, Part

# transformers Qwen3VLConfig, Qwen3VLTextConfig, Qwen3VLVisionConfig
DEFAULTS = {"tie_word_embeddings": False}
TEXT_DEFAULTS = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "attention_bias": False,
}  # fmt: skip
VISION_DEFAULTS = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "in_channels": 3,
    "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 3584,
    "num_position_embeddings": 2304, "deepstack_visual_indexes": (8, 16, 24),
}  # fmt: skip


def text_model(config: Config) -> multimodal.Language:
    """Qwen3: norms on each head's queries and keys."""
    section = config.section("text_config", TEXT_DEFAULTS)
    section = Config({**section.values, "model_type": "text"}, {}, section.where)
    heads, bias = read_heads(section), section.flag("attention_bias")
    block = (
        *attention(section, heads, bias, bias),
        *qk_norms(heads.size, heads.size),
        *gated_mlp(section),
        *block_norms(section, "input_layernorm", "post_attention_layernorm"),
    )
    frame = llama_frame(section, "Qwen3VLTextModel", "Qwen3VLTextDecoderLayer", block, rotary(section, heads.size))
    return multimodal.body(frame, "model.language_model")


def merger(config: Config, name: str, after_shuffle: bool) -> Parameters:
    """The deep mergers normalise after patches are joined, the last one before."""
    width, out = config.integer("hidden_size"), config.integer("out_hidden_size")
    inner = width * config.integer("spatial_merge_size") ** 2
    return under(f"{TOWER}.{name}", (
        *norm("norm", inner if after_shuffle else width, bias=True),
        *linear("linear_fc1", inner, inner, bias=True),
        *linear("linear_fc2", out, inner, bias=True),
    ))  # fmt: skip


def vision_tower(config: Config) -> tuple[Part, ...]:
    width, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    head = config.divided("hidden_size", "num_heads")
    block = (
        *norm("norm1", width, bias=True),
        *norm("norm2", width, bias=True),
        *fused_attention(width),
        *linear("mlp.linear_fc1", inner, width, bias=True),
        *linear("mlp.linear_fc2", width, inner, bias=True),
    )
    deep = range(len(integers(config, "deepstack_visual_indexes")))
    return (
        root(patch_embedding(config, width, bias=True),
             embedding(f"{TOWER}.pos_embed", config.integer("num_position_embeddings"), width), role="vision",
             buffers=frequencies(f"{TOWER}.rotary_pos_emb", head // 2)),
        Part(block, config.integer("depth"), f"{TOWER}.blocks.{{}}", class_name="Qwen3VLVisionBlock", role="vision"),
        root(merger(config, "merger", after_shuffle=False),
             *(merger(config, f"deepstack_merger_list.{i}", after_shuffle=True) for i in deep), role="projector"),
    )  # fmt: skip


def build(config: Config) -> ModelSpec:
    vision, text = config.section("vision_config", VISION_DEFAULTS), text_model(config)
    check_width(config, vision.integer("out_hidden_size"), text, "out_hidden_size")
    return multimodal.assemble(config, "qwen3_vl", "Qwen3VLForConditionalGeneration", vision_tower(vision), text)
