"""ModernBERT: rotary encoder without biases, fused projections; the first block has no attention norm."""

from __future__ import annotations

from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import Parameters, layer_kinds, rotary
from estimators.model.families.pieces import root
from estimators.model.spec import ModelSpec, Part

# transformers ModernBertConfig
DEFAULTS = {
    "vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
    "num_attention_heads": 12, "norm_bias": False, "attention_bias": False, "mlp_bias": False,
    "decoder_bias": True, "classifier_bias": False, "tie_word_embeddings": True,
}  # fmt: skip


def block(config: Config, first: bool) -> Parameters:
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    norm_bias, bias, mlp_bias = (config.flag(key) for key in ("norm_bias", "attention_bias", "mlp_bias"))
    return (
        *(() if first else norm("attn_norm", hidden, norm_bias)),
        *linear("attn.Wqkv", 3 * hidden, hidden, bias),
        *linear("attn.Wo", hidden, hidden, bias),
        *norm("mlp_norm", hidden, norm_bias),
        *linear("mlp.Wi", 2 * inner, hidden, mlp_bias),
        *linear("mlp.Wo", hidden, inner, mlp_bias),
    )


def rotary_kinds(config: Config) -> tuple[str, ...]:
    """Full attention in every third layer, beginning with the first."""
    if config.raw("layer_types") is not None:
        return layer_kinds(config, 1)
    every = config.integer("global_attn_every_n_layers", 3)
    sliding = ("sliding_attention",) if every > 1 and config.integer("num_hidden_layers") > 1 else ()
    return ("full_attention", *sliding)


def build(config: Config) -> ModelSpec:
    hidden, rows, count = (config.integer(k) for k in ("hidden_size", "vocab_size", "num_hidden_layers"))
    size, tie = config.divided("hidden_size", "num_attention_heads"), config.flag("tie_word_embeddings")
    kinds = tuple(f"{kind}_" for kind in rotary_kinds(config))
    norm_bias = config.flag("norm_bias")

    def run(length: int, first: int) -> Part:
        return Part(block(config, first=not first), length, "model.layers.{}", first, "ModernBertEncoderLayer",
                    "encoder")  # fmt: skip

    decoder = linear("decoder", rows, hidden, config.flag("decoder_bias"))
    parts = (
        root(embedding("model.embeddings.tok_embeddings", rows, hidden),
             norm("model.embeddings.norm", hidden, norm_bias), role="encoder"),
        run(1, 0),
        *((run(count - 1, 1),) if count > 1 else ()),
        root(norm("model.final_norm", hidden, norm_bias), role="encoder", buffers=rotary(config, size, kinds=kinds)),
        root(linear("head.dense", hidden, hidden, config.flag("classifier_bias")),
             norm("head.norm", hidden, norm_bias), decoder[1:] if tie else decoder, role="encoder"),
    )  # fmt: skip
    words = "model.embeddings.tok_embeddings"
    return ModelSpec(
        name="", family="modernbert", class_name="ModernBertForMaskedLM", parts=parts, config=config.values,
        tied={"decoder.weight": f"{words}.weight"} if tie else {}, embedding=words, head="decoder",
    )  # fmt: skip
