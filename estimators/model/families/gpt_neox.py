"""GPT-NeoX and Pythia: q, k, v in one tensor, LayerNorm, a quarter of each head rotated; both norms come first."""

from __future__ import annotations

from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import block_norms, causal_lm, root, rotary
from estimators.model.spec import ModelSpec, Part

# transformers GPTNeoXConfig
DEFAULTS = {
    "vocab_size": 50432, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44,
    "num_attention_heads": 64, "tie_word_embeddings": False, "attention_bias": True,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    head_size, bias = config.divided("hidden_size", "num_attention_heads"), config.flag("attention_bias", True)
    block = (
        *block_norms(config, "input_layernorm", "post_attention_layernorm", bias=True),
        *linear("attention.query_key_value", 3 * hidden, hidden, bias),
        *linear("attention.dense", hidden, hidden, bias),
        *linear("mlp.dense_h_to_4h", inner, hidden, bias=True),
        *linear("mlp.dense_4h_to_h", hidden, inner, bias=True),
    )
    buffers = rotary(
        config, head_size, partial=config.fraction("rotary_pct", 0.25), module="gpt_neox.rotary_emb"
    )  # published configs name the share rotary_pct
    return causal_lm(
        config,
        "GPTNeoXForCausalLM",
        before=root(embedding("gpt_neox.embed_in", config.integer("vocab_size"), hidden)),
        blocks=(Part(block, config.integer("num_hidden_layers"), "gpt_neox.layers.{}", class_name="GPTNeoXLayer"),),
        after=root(norm("gpt_neox.final_layer_norm", hidden, bias=True), buffers=buffers),
        embedding_name="gpt_neox.embed_in",
    )
