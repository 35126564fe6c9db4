"""OPT: learned positions (two rows more), the final norm before the layers; 350m projects a narrower embedding."""

from __future__ import annotations

from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import causal_lm, root
from estimators.model.spec import ModelSpec, Part

# transformers OPTConfig
DEFAULTS = {
    "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "tie_word_embeddings": True, "max_position_embeddings": 2048, "ffn_dim": 3072, "do_layer_norm_before": True,
    "_remove_final_layer_norm": False, "enable_bias": True, "layer_norm_elementwise_affine": True,
}  # fmt: skip
POSITION_OFFSET = 2  # OPTLearnedPositionalEmbedding.offset


def build(config: Config) -> ModelSpec:
    hidden, inner, bias = config.integer("hidden_size"), config.integer("ffn_dim"), config.flag("enable_bias", True)
    config.divided("hidden_size", "num_attention_heads")
    width = config.integer("word_embed_proj_dim", hidden)
    affine = config.flag("layer_norm_elementwise_affine", True)
    block = (
        *(p for name in ("k", "v", "q", "out") for p in linear(f"self_attn.{name}_proj", hidden, hidden, bias)),
        *(norm("self_attn_layer_norm", hidden, bias=True) if affine else ()),
        *linear("fc1", inner, hidden, bias),
        *linear("fc2", hidden, inner, bias),
        *(norm("final_layer_norm", hidden, bias=True) if affine else ()),
    )
    before = [
        *embedding("model.decoder.embed_tokens", config.integer("vocab_size"), width),
        *embedding(
            "model.decoder.embed_positions", config.integer("max_position_embeddings") + POSITION_OFFSET, hidden
        ),
    ]
    if width != hidden:
        before += linear("model.decoder.project_out", width, hidden)
        before += linear("model.decoder.project_in", hidden, width)
    if affine and config.flag("do_layer_norm_before", True) and not config.flag("_remove_final_layer_norm"):
        before += norm("model.decoder.final_layer_norm", hidden, bias=True)
    layers = config.integer("num_hidden_layers")
    return causal_lm(
        config,
        "OPTForCausalLM",
        before=root(tuple(before)),
        blocks=(Part(block, layers, "model.decoder.layers.{}", class_name="OPTDecoderLayer"),),
        after=root(),
        embedding_name="model.decoder.embed_tokens",
        head_width=width,
    )
