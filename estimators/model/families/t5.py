"""T5, v1.1 and Flan-T5: one table for both embeddings and the head; ``wo`` is kept in fp32 beside fp16.

The first block of each stack alone owns the relative-position table, so it is a part of its own.
"""

from __future__ import annotations

from estimators.errors import InputError, short
from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import Parameters
from estimators.model.families.pieces import root, under
from estimators.model.spec import ModelSpec, Part

# transformers T5Config
DEFAULTS = {
    "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8,
    "relative_attention_num_buckets": 32, "feed_forward_proj": "relu",
}  # fmt: skip
COMMON = {"d_model": "hidden_size", "num_heads": "num_attention_heads", "num_layers": "num_hidden_layers",
          "d_kv": "head_dim"}  # fmt: skip
TABLE = "shared.weight"


def attention(config: Config, name: str, table: bool = False) -> Parameters:
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    width = heads * config.integer("head_dim")
    positions = embedding("relative_attention_bias", config.integer("relative_attention_num_buckets"), heads)
    return under(name, (
        *linear("q", width, hidden), *linear("k", width, hidden), *linear("v", width, hidden),
        *linear("o", hidden, width), *(positions if table else ()),
    ))  # fmt: skip


def feed_forward(config: Config) -> Parameters:
    """``wi`` and ``wo``, or two ``wi`` where ``feed_forward_proj`` is gated-something."""
    hidden, inner, kind = config.integer("hidden_size"), config.integer("d_ff"), config.text("feed_forward_proj")
    words = kind.split("-")
    if len(words) > 2 or (len(words) == 2 and words[0] != "gated"):
        raise InputError(f"{config.where}: feed_forward_proj is {short(kind)}; give 'relu', 'gated-gelu' or the like")
    inputs = ("wi_0", "wi_1") if words[0] == "gated" else ("wi",)
    return under("DenseReluDense", (
        *(p for name in inputs for p in linear(name, inner, hidden)),
        *linear("wo", hidden, inner, keep_fp32="fp16"),
    ))  # fmt: skip


def block(config: Config, decoder: bool, table: bool) -> Parameters:
    """Self-attention, in the decoder cross-attention, feed-forward: each a layer with its norm."""
    layers = [attention(config, "SelfAttention", table)]
    layers += [attention(config, "EncDecAttention")] if decoder else []
    layers += [feed_forward(config)]
    scale = norm("layer_norm", config.integer("hidden_size"))
    return tuple(p for i, layer in enumerate(layers) for p in under(f"layer.{i}", (*layer, *scale)))


def stack(config: Config, name: str, count: int, class_name: str, table_everywhere: bool) -> tuple[Part, ...]:
    """One stack's blocks and its final norm."""
    decoder = name == "decoder"

    def run(first: int, length: int, table: bool) -> Part:
        return Part(block(config, decoder, table), length, f"{name}.block.{{}}", first, class_name, name)

    if table_everywhere:
        runs = [run(0, count, True)]
    else:
        runs = [run(0, 1, True), *([run(1, count - 1, False)] if count > 1 else [])]
    return (*runs, root(norm(f"{name}.final_layer_norm", config.integer("hidden_size")), role=name))


def assemble(config: Config, stem: str, table_everywhere: bool = False) -> ModelSpec:
    config = config.renamed(COMMON)
    encoders = config.integer("num_hidden_layers")
    decoders = config.integer("num_decoder_layers", encoders)
    return ModelSpec(
        name="",
        family=config.text("model_type"),
        class_name=f"{stem}ForConditionalGeneration",
        parts=(
            root(embedding("shared", config.integer("vocab_size"), config.integer("hidden_size")), role="encoder"),
            *stack(config, "encoder", encoders, f"{stem}Block", table_everywhere),
            *stack(config, "decoder", decoders, f"{stem}Block", table_everywhere),
        ),
        config=config.values,
        tied={"encoder.embed_tokens.weight": TABLE, "decoder.embed_tokens.weight": TABLE, "lm_head.weight": TABLE},
        embedding="shared",
        head="lm_head",
    )


def build(config: Config) -> ModelSpec:
    return assemble(config, "T5")
