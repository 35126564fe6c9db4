"""Qwen2-VL: a vision transformer over 3-D patches, a merger of 2 x 2 patches, Qwen2's text model.

Hub configs keep the text keys beside ``vision_config``; newer ones nest them in ``text_config``.
"""

from __future__ import annotations

from estimators.errors import InputError
from estimators.model.families import multimodal
from estimators.model.families.common import Config, linear, norm
from estimators.model.families.decoder import (
    Parameters,
    attention,
    block_norms,
    gated_mlp,
    llama_frame,
    read_heads,
    rotary,
)
from estimators.model.families.pieces import convolution, frequencies, root, under
from estimators.model.families.vit import mlp
from estimators.model.spec import ModelSpec, Part

# transformers Qwen2VLConfig, Qwen2VLTextConfig, Qwen2VLVisionConfig
DEFAULTS = {"tie_word_embeddings": False}
TEXT_DEFAULTS = {
    "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8,
}  # fmt: skip
VISION_DEFAULTS = {
    "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "num_heads": 16, "in_channels": 3,
    "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
TOWER = "model.visual"


def text_model(config: Config, stem: str) -> multimodal.Language:
    """Qwen2 with biases on q, k, v; from ``text_config``, or from the outer keys where that is absent."""
    nested = config.raw("text_config") is not None
    values = config.section("text_config", TEXT_DEFAULTS).values if nested else config.values
    section = Config(
        {**values, "model_type": "text"}, TEXT_DEFAULTS, f"{config.where}.text_config" if nested else config.where
    )
    heads = read_heads(section)
    block = (
        *attention(section, heads, bias=True),
        *gated_mlp(section),
        *block_norms(section, "input_layernorm", "post_attention_layernorm"),
    )
    frame = llama_frame(section, f"{stem}Model", f"{stem}DecoderLayer", block, rotary(section, heads.size))
    return multimodal.body(frame, "model.language_model")


def patch_embedding(config: Config, width: int, bias: bool = False) -> Parameters:
    """A convolution over time, height and width."""
    patch, frames = config.integer("patch_size"), config.integer("temporal_patch_size")
    return convolution(f"{TOWER}.patch_embed.proj", (width, config.integer("in_channels"), frames, patch, patch), bias)


def merger(config: Config, width: int, out: int, norm_bias: bool) -> Parameters:
    """Concatenates a square of patches and maps it to the text model."""
    inner = width * config.integer("spatial_merge_size") ** 2
    return under(f"{TOWER}.merger", (
        *norm("ln_q", width, norm_bias),
        *linear("mlp.0", inner, inner, bias=True),
        *linear("mlp.2", out, inner, bias=True),
    ))  # fmt: skip


def fused_attention(hidden: int) -> Parameters:
    return (*linear("attn.qkv", 3 * hidden, hidden, bias=True), *linear("attn.proj", hidden, hidden, bias=True))


def vision_tower(config: Config) -> tuple[Part, ...]:
    width, out = config.integer("embed_dim"), config.integer("hidden_size")
    head = config.divided("embed_dim", "num_heads")
    block = (
        *norm("norm1", width, bias=True),
        *norm("norm2", width, bias=True),
        *fused_attention(width),
        *mlp(width, width * config.integer("mlp_ratio")),
    )
    return (
        root(patch_embedding(config, width), role="vision",
             buffers=frequencies(f"{TOWER}.rotary_pos_emb", head // 2)),
        Part(block, config.integer("depth"), f"{TOWER}.blocks.{{}}", class_name="Qwen2VLVisionBlock", role="vision"),
        root(merger(config, width, out, norm_bias=True), role="projector"),
    )  # fmt: skip


def check_width(config: Config, out: int, text: multimodal.Language, key: str) -> None:
    if out != text.hidden:
        raise InputError(f"{config.where}.vision_config: {key} is {out}, and the text model's hidden_size is "
                         f"{text.hidden}; they must be equal")  # fmt: skip


def build(config: Config) -> ModelSpec:
    vision = config.section("vision_config", VISION_DEFAULTS)
    text = text_model(config, "Qwen2VL")
    check_width(config, vision.integer("hidden_size"), text, "hidden_size")
    return multimodal.assemble(config, "qwen2_vl", "Qwen2VLForConditionalGeneration", vision_tower(vision), text)
