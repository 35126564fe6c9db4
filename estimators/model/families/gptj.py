"""GPT-J: one LayerNorm before parallel attention and MLP; projections k, v, q in this order; a table of sines."""

from __future__ import annotations

from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import Parameters, causal_lm, root
from estimators.model.families.gpt2 import COMMON_NAMES
from estimators.model.spec import Buffer, ModelSpec, Part

# transformers GPTJConfig
DEFAULTS = {
    "vocab_size": 50400, "tie_word_embeddings": False, "n_positions": 2048, "n_embd": 4096, "n_layer": 28,
    "n_head": 16, "rotary_dim": 64,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    config = config.renamed(COMMON_NAMES)
    hidden = config.integer("hidden_size")
    projections = tuple(
        p for name in ("k_proj", "v_proj", "q_proj", "out_proj") for p in linear(f"attn.{name}", hidden, hidden)
    )
    return parallel_frame(config, "GPTJForCausalLM", "GPTJBlock", projections)


def parallel_frame(config: Config, class_name: str, block_class: str, projections: Parameters) -> ModelSpec:
    """GPT-J's network around the given attention projections."""
    hidden = config.integer("hidden_size")
    config.divided("hidden_size", "num_attention_heads")
    inner = config.integer("n_inner", 4 * hidden)
    block = (
        *norm("ln_1", hidden, bias=True),
        *projections,
        *linear("mlp.fc_in", inner, hidden, bias=True),
        *linear("mlp.fc_out", hidden, inner, bias=True),
    )
    rotated = config.integer("rotary_dim", hidden, minimum=2)
    sines = Buffer("transformer.rotary_emb.embed_positions", (config.integer("max_position_embeddings"), rotated))
    return causal_lm(
        config,
        class_name,
        before=root(embedding("transformer.wte", config.integer("vocab_size"), hidden)),
        blocks=(Part(block, config.integer("num_hidden_layers"), "transformer.h.{}", class_name=block_class),),
        after=root(norm("transformer.ln_f", hidden, bias=True), buffers=(sines,)),
        embedding_name="transformer.wte",
        head_bias=True,
    )
