"""InternLM2 and 2.5 (hub code): Llama's network under names of its own, q, k, v in one tensor, gate, up, down last."""

from __future__ import annotations

from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import block_norms, causal_lm, read_heads, root
from estimators.model.spec import Buffer, ModelSpec, Part

# InternLM2Config of the hub
DEFAULTS = {
    "vocab_size": 103168, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "bias": True, "tie_word_embeddings": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    hidden, inner, bias = config.integer("hidden_size"), config.integer("intermediate_size"), config.flag("bias", True)
    block = (
        *linear("attention.wqkv", heads.width + 2 * heads.kv_width, hidden, bias),
        *linear("attention.wo", hidden, heads.width, bias),
        *linear("feed_forward.w1", inner, hidden),
        *linear("feed_forward.w3", inner, hidden),
        *linear("feed_forward.w2", hidden, inner),
        *block_norms(config, "attention_norm", "ffn_norm"),
    )
    frequencies = (Buffer("attention.rotary_emb.inv_freq", ((heads.size + 1) // 2,)),)
    layers = config.integer("num_hidden_layers")
    return causal_lm(
        config,
        "InternLM2ForCausalLM",
        before=root(embedding("model.tok_embeddings", config.integer("vocab_size"), hidden)),
        blocks=(Part(block, layers, "model.layers.{}", class_name="InternLM2DecoderLayer", buffers=frequencies),),
        after=root(norm("model.norm", hidden)),
        embedding_name="model.tok_embeddings",
        head="output",
        shapes="formula",
    )
