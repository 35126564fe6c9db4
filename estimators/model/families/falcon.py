"""Falcon: q, k, v in one tensor; three generations differ in heads and norms.

rw              multi_query off, parallel_attn off: full heads, two norms in sequence, biases, ALiBi
7b              multi_query: one key-value head, one norm before parallel attention and MLP
40b, 180b, 2    new_decoder_architecture: ``num_kv_heads``, a norm each for attention and MLP (Falcon 2: one)
"""

from __future__ import annotations

from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import block_norms, causal_lm, read_heads, root, rotary
from estimators.model.spec import ModelSpec, Part

# transformers FalconConfig
DEFAULTS = {
    "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
    "tie_word_embeddings": True, "multi_query": True, "alibi": False, "new_decoder_architecture": False,
    "parallel_attn": True, "bias": False,
}  # fmt: skip
ALSO_NAMED = ("RWForCausalLM",)  # the hub code before Falcon entered transformers


def build(config: Config) -> ModelSpec:
    config = config.renamed({"n_embed": "hidden_size"}).without("head_dim")
    hidden, bias = config.integer("hidden_size"), config.flag("bias")
    head_size = config.divided("hidden_size", "num_attention_heads")
    inner = config.integer("ffn_hidden_size", 4 * hidden)
    block = (
        *linear("self_attention.query_key_value", hidden + 2 * kv_width(config), hidden, bias),
        *linear("self_attention.dense", hidden, hidden, bias),
        *linear("mlp.dense_h_to_4h", inner, hidden, bias),
        *linear("mlp.dense_4h_to_h", hidden, inner, bias),
        *block_norms(config, *norm_names(config), bias=True),
    )
    return causal_lm(
        config,
        "FalconForCausalLM",
        before=root(embedding("transformer.word_embeddings", config.integer("vocab_size"), hidden)),
        blocks=(Part(block, config.integer("num_hidden_layers"), "transformer.h.{}", class_name="FalconDecoderLayer"),),
        after=root(
            norm("transformer.ln_f", hidden, bias=True),
            buffers=rotary(config, head_size, module="transformer.rotary_emb"),
        ),
        embedding_name="transformer.word_embeddings",
    )


def kv_width(config: Config) -> int:
    """Features of all keys (and of all values) together."""
    if config.flag("new_decoder_architecture"):
        return read_heads(config, kv_key="num_kv_heads").kv_width
    if config.flag("multi_query", True):
        return config.divided("hidden_size", "num_attention_heads")
    return config.integer("hidden_size")


def norm_names(config: Config) -> tuple[str, ...]:
    if not config.flag("parallel_attn", True):
        return ("post_attention_layernorm", "input_layernorm")
    default = 2 if config.flag("new_decoder_architecture") else 1
    two = config.integer("num_ln_in_parallel_attn", default) == 2
    return ("ln_attn", "ln_mlp") if two else ("input_layernorm",)
