"""IQuest-Coder: Llama's class with its own defaults."""

from __future__ import annotations

from estimators.model.families import llama
from estimators.model.families.common import Config
from estimators.model.spec import ModelSpec

# transformers IQuestCoderConfig
DEFAULTS = {
    "vocab_size": 76800, "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 80,
    "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
ALSO_NAMED = ("IQuestCoderForCausalLM",)


def build(config: Config) -> ModelSpec:
    return llama.build(config)
