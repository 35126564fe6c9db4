"""Pixtral's vision tower (Mistral 3, some LLaVA): a Llama-like encoder with two-dimensional rotary positions."""

from __future__ import annotations

from estimators.model.families.common import Config, linear, norm
from estimators.model.families.pieces import frequencies, root
from estimators.model.families.vit import patches
from estimators.model.spec import Part

# transformers PixtralVisionConfig
VISION_DEFAULTS = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "num_channels": 3, "image_size": 1024, "patch_size": 16,
}  # fmt: skip


def vision_tower(config: Config, prefix: str) -> tuple[Part, ...]:
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    block = (
        *norm("attention_norm", hidden),
        *linear("feed_forward.gate_proj", inner, hidden),
        *linear("feed_forward.up_proj", inner, hidden),
        *linear("feed_forward.down_proj", hidden, inner),
        *(p for name in "kvqo" for p in linear(f"attention.{name}_proj", hidden, hidden)),
        *norm("ffn_norm", hidden),
    )
    size = config.divided("hidden_size", "num_attention_heads")
    return (
        root(patches(config, f"{prefix}.patch_conv", bias=False), norm(f"{prefix}.ln_pre", hidden), role="vision",
             buffers=frequencies(f"{prefix}.patch_positional_embedding", config.integer("head_dim", size))),
        Part(block, config.integer("num_hidden_layers"), f"{prefix}.transformer.layers.{{}}",
             class_name="PixtralAttentionLayer", role="vision"),
    )  # fmt: skip
