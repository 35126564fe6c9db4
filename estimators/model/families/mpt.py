"""MPT: no biases, norms without one, ALiBi. ``expansion_ratio`` is ignored by the class: the MLP is four times wide."""

from __future__ import annotations

from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import causal_lm, root
from estimators.model.spec import ModelSpec, Part

# transformers MptConfig
DEFAULTS = {
    "vocab_size": 50368, "tie_word_embeddings": True, "d_model": 2048, "n_heads": 16, "n_layers": 24,
}  # fmt: skip
ALSO_NAMED = ("MPTForCausalLM",)  # the spelling of the hub code
COMMON_NAMES = {"d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}


def build(config: Config) -> ModelSpec:
    config = config.renamed(COMMON_NAMES)
    hidden = config.integer("hidden_size")
    config.divided("hidden_size", "num_attention_heads")
    block = (
        *norm("norm_1", hidden),
        *linear("attn.Wqkv", 3 * hidden, hidden),
        *linear("attn.out_proj", hidden, hidden),
        *norm("norm_2", hidden),
        *linear("ffn.up_proj", 4 * hidden, hidden),
        *linear("ffn.down_proj", hidden, 4 * hidden),
    )
    return causal_lm(
        config,
        "MptForCausalLM",
        before=root(embedding("transformer.wte", config.integer("vocab_size"), hidden)),
        blocks=(Part(block, config.integer("num_hidden_layers"), "transformer.blocks.{}", class_name="MptBlock"),),
        after=root(norm("transformer.norm_f", hidden)),
        embedding_name="transformer.wte",
    )
