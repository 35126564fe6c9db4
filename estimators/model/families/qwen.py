"""Qwen 1 (hub code): q, k, v in one tensor with a bias; the config's ``intermediate_size`` counts gate and up together.

Each layer holds a table of 32767 log-n factors and a mask value, whether it uses them or not.
"""

from __future__ import annotations

from estimators.errors import InputError
from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import causal_lm, root
from estimators.model.spec import Buffer, ModelSpec, Part

# QWenConfig of the hub
DEFAULTS = {
    "vocab_size": 151936, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "kv_channels": 128, "intermediate_size": 22016, "no_bias": True, "tie_word_embeddings": False,
}  # fmt: skip
TABLES = (Buffer("attn.masked_bias", ()), Buffer("attn.logn_tensor", (1, 32767, 1, 1)))


def build(config: Config) -> ModelSpec:
    hidden, both = config.integer("hidden_size"), config.integer("intermediate_size")
    if both % 2:
        raise InputError(f"{config.where}: intermediate_size is {both}; Qwen 1 halves it, so give an even number")
    channels, bias = config.integer("kv_channels"), not config.flag("no_bias", True)
    width = channels * config.integer("num_attention_heads")
    block = (
        *norm("ln_1", hidden),
        *linear("attn.c_attn", 3 * width, hidden, bias=True),
        *linear("attn.c_proj", width, hidden, bias),
        *norm("ln_2", hidden),
        *linear("mlp.w1", both // 2, hidden, bias),
        *linear("mlp.w2", both // 2, hidden, bias),
        *linear("mlp.c_proj", hidden, both // 2, bias),
    )
    layers = config.integer("num_hidden_layers")
    frequencies = Buffer("transformer.rotary_emb.inv_freq", ((channels + 1) // 2,))
    return causal_lm(
        config,
        "QWenLMHeadModel",
        before=root(embedding("transformer.wte", config.integer("vocab_size"), hidden), buffers=(frequencies,)),
        blocks=(Part(block, layers, "transformer.h.{}", class_name="QWenBlock", buffers=TABLES),),
        after=root(norm("transformer.ln_f", hidden)),
        embedding_name="transformer.wte",
        shapes="formula",
    )
