"""StarCoder, SantaCoder: GPT-2 with linear layers and one key-value head; the model holds the whole causal mask."""

from __future__ import annotations

from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import causal_lm, root
from estimators.model.families.gpt2 import COMMON_NAMES, refuse_cross_attention
from estimators.model.spec import Buffer, ModelSpec, Part

# transformers GPTBigCodeConfig
DEFAULTS = {
    "vocab_size": 50257, "tie_word_embeddings": True, "n_positions": 1024, "n_embd": 768, "n_layer": 12,
    "n_head": 12, "multi_query": True,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    config = config.renamed(COMMON_NAMES)
    refuse_cross_attention(config)
    hidden, positions = config.integer("hidden_size"), config.integer("max_position_embeddings")
    head_size = config.divided("hidden_size", "num_attention_heads")
    kv = head_size if config.flag("multi_query") else hidden
    inner = config.integer("n_inner", 4 * hidden)
    block = (
        *norm("ln_1", hidden, bias=True),
        *linear("attn.c_attn", hidden + 2 * kv, hidden, bias=True),
        *linear("attn.c_proj", hidden, hidden, bias=True),
        *norm("ln_2", hidden, bias=True),
        *linear("mlp.c_fc", inner, hidden, bias=True),
        *linear("mlp.c_proj", hidden, inner, bias=True),
    )
    return causal_lm(
        config,
        "GPTBigCodeForCausalLM",
        before=root(
            embedding("transformer.wte", config.integer("vocab_size"), hidden),
            embedding("transformer.wpe", positions, hidden),
        ),
        blocks=(Part(block, config.integer("num_hidden_layers"), "transformer.h.{}", class_name="GPTBigCodeBlock"),),
        after=root(
            norm("transformer.ln_f", hidden, bias=True),
            buffers=(Buffer("transformer.bias", (positions, positions), "bool"),),
        ),
        embedding_name="transformer.wte",
    )
