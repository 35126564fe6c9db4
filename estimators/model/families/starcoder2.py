"""StarCoder2: Llama's attention with LayerNorm and an MLP without a gate; one switch for all biases but the head's."""

from __future__ import annotations

from estimators.model.families.common import Config, linear, norm
from estimators.model.families.decoder import attention, block_norms, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers Starcoder2Config
DEFAULTS = {
    "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30,
    "num_attention_heads": 24, "num_key_value_heads": 2, "tie_word_embeddings": True, "use_bias": True,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    hidden, inner, bias = config.integer("hidden_size"), config.integer("intermediate_size"), config.flag("use_bias")
    block = (
        *attention(config, heads, bias, bias),
        *linear("mlp.c_fc", inner, hidden, bias),
        *linear("mlp.c_proj", hidden, inner, bias),
        *block_norms(config, "input_layernorm", "post_attention_layernorm", bias=True),
    )
    return llama_frame(
        config,
        "Starcoder2ForCausalLM",
        "Starcoder2DecoderLayer",
        block,
        rotary(config, heads.size),
        norm("model.norm", hidden, bias=True),
    )
