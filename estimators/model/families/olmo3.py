"""OLMo 3: OLMo 2's block; sliding and full layers keep rotary frequencies of their own."""

from __future__ import annotations

from estimators.model.families.common import Config
from estimators.model.families.decoder import layer_kinds, llama_frame, read_heads, rotary
from estimators.model.families.olmo2 import olmo2_block
from estimators.model.spec import ModelSpec

# transformers Olmo3Config
DEFAULTS = {
    "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "tie_word_embeddings": False, "attention_bias": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    kinds = tuple(f"{kind}_" for kind in layer_kinds(config, pattern=4))
    buffers = rotary(config, heads.size, kinds=kinds)
    return llama_frame(config, "Olmo3ForCausalLM", "Olmo3DecoderLayer", olmo2_block(config, heads), buffers)
