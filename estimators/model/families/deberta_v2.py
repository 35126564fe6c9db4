"""DeBERTa-v2 and v3: projections for relative positions, one table of them for all blocks, an optional convolution."""

from __future__ import annotations

from estimators.errors import InputError, NotModelled, short
from estimators.model.families import encoder
from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import Parameters
from estimators.model.families.pieces import convolution, position_ids, root, under
from estimators.model.spec import ModelSpec, Part

# transformers DebertaV2Config
DEFAULTS = {
    "vocab_size": 128100, "hidden_size": 1536, "num_hidden_layers": 24, "num_attention_heads": 24,
    "intermediate_size": 6144, "max_position_embeddings": 512, "type_vocab_size": 0, "relative_attention": False,
    "max_relative_positions": -1, "position_buckets": -1, "position_biased_input": True, "share_att_key": False,
    "norm_rel_ebd": "none", "conv_kernel_size": 0, "conv_groups": 1, "legacy": True, "tie_word_embeddings": True,
}  # fmt: skip


def embeddings(config: Config, width: int) -> Part:
    hidden, types = config.integer("hidden_size"), config.integer("type_vocab_size", minimum=0)
    count = config.integer("max_position_embeddings")
    parameters = (
        *embedding("word_embeddings", config.integer("vocab_size"), width),
        *(embedding("position_embeddings", count, width) if config.flag("position_biased_input") else ()),
        *(embedding("token_type_embeddings", types, width) if types else ()),
        *(linear("embed_proj", hidden, width) if width != hidden else ()),
        *norm("LayerNorm", hidden, bias=True),
    )
    buffers = (position_ids("deberta.embeddings.position_ids", count),)
    return root(under("deberta.embeddings", parameters), buffers=buffers, role="encoder")


def position_kinds(config: Config) -> tuple[str, ...]:
    """``pos_att_type``: c2p, p2c; hub configs also join them with a bar."""
    kinds = config.raw("pos_att_type", ())
    kinds = kinds.lower().split("|") if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list | tuple) or not all(isinstance(kind, str) for kind in kinds):
        raise InputError(f"{config.where}: pos_att_type is {short(kinds)}; give a list of c2p and p2c")
    return tuple(kind.strip() for kind in kinds)


def block(config: Config) -> Parameters:
    hidden, width = config.integer("hidden_size"), config.divided("hidden_size", "num_attention_heads")
    width = config.integer("num_attention_heads") * config.integer("attention_head_size", width)
    kinds = position_kinds(config)
    extra: Parameters = ()
    if config.flag("relative_attention") and not config.flag("share_att_key"):
        extra += linear("attention.self.pos_key_proj", width, hidden, bias=True) if "c2p" in kinds else ()
        extra += linear("attention.self.pos_query_proj", width, hidden, bias=True) if "p2c" in kinds else ()
    return (
        *encoder.attention(config, width, "query_proj", "key_proj", "value_proj", extra),
        *encoder.feed_forward(config),
    )


def after_blocks(config: Config) -> Parameters:
    """Relative positions: ``position_buckets`` or the longest distance, to both sides; then norm and convolution."""
    hidden, kernel = config.integer("hidden_size"), config.integer("conv_kernel_size", minimum=0)
    reach = config.integer("position_buckets", minimum=-1)
    if reach < 1:
        reach = config.integer("max_relative_positions", minimum=-1)
    if reach < 1:
        reach = config.integer("max_position_embeddings")
    parameters: Parameters = embedding("rel_embeddings", 2 * reach, hidden) if config.flag("relative_attention") else ()
    if "layer_norm" in [word.strip() for word in config.text("norm_rel_ebd").lower().split("|")]:
        parameters += norm("LayerNorm", hidden, bias=True)
    if kernel:
        inner = config.divided("hidden_size", "conv_groups")
        parameters += convolution("conv.conv", (hidden, inner, kernel)) + norm("conv.LayerNorm", hidden, bias=True)
    return under("deberta.encoder", parameters)


def build(config: Config) -> ModelSpec:
    if not config.flag("legacy"):
        raise NotModelled(f"{config.where}: legacy is false, and only the legacy head has a formula here")
    hidden = config.integer("hidden_size")
    width = config.integer("embedding_size", hidden)
    run = Part(block(config), config.integer("num_hidden_layers"), "deberta.encoder.layer.{}",
               class_name="DebertaV2Layer", role="encoder")  # fmt: skip
    before = (embeddings(config, width), run, root(after_blocks(config), role="encoder"))
    transform = (*linear("dense", width, hidden, bias=True), *norm("LayerNorm", width, bias=True))
    return encoder.masked_lm(
        config, "DebertaV2ForMaskedLM", before, under("cls.predictions.transform", transform),
        bias="cls.predictions.bias", words="deberta.embeddings.word_embeddings", head="cls.predictions.decoder",
    )  # fmt: skip
