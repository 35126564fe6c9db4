"""InternLM3: Llama's class with its own defaults; one switch for all biases."""

from __future__ import annotations

from estimators.errors import InputError
from estimators.model.families import llama
from estimators.model.families.common import Config
from estimators.model.spec import ModelSpec

# transformers InternLM3Config
DEFAULTS = {
    "vocab_size": 128512, "hidden_size": 4096, "intermediate_size": 10240, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
ALSO_NAMED = ("InternLM3ForCausalLM",)


def build(config: Config) -> ModelSpec:
    config = config.renamed({"qkv_bias": "attention_bias", "bias": "mlp_bias"})
    attention_bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    if attention_bias != mlp_bias:
        raise InputError(
            f"{config.where}: qkv_bias is {attention_bias} and bias is {mlp_bias}; InternLM3 needs them equal"
        )
    return llama.build(config)
