"""EXAONE 3 and 3.5: Llama's class with its own defaults; the hub's code calls layers ``num_layers``."""

from __future__ import annotations

from estimators.model.families import llama
from estimators.model.families.common import Config
from estimators.model.spec import ModelSpec

# transformers ExaoneConfig
DEFAULTS = {
    "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False, "attention_bias": False,
    "mlp_bias": False,
}  # fmt: skip
ALSO_NAMED = ("ExaoneForCausalLM",)


def build(config: Config) -> ModelSpec:
    return llama.build(config.renamed({"num_layers": "num_hidden_layers"}))
