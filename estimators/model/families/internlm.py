"""InternLM 1 (hub code): Llama with biases in attention and up after down; every layer holds its frequencies."""

from __future__ import annotations

from estimators.model.families.common import Config, linear
from estimators.model.families.decoder import attention, block_norms, llama_frame, read_heads
from estimators.model.spec import Buffer, ModelSpec

# InternLMConfig of the hub
DEFAULTS = {
    "vocab_size": 103168, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "bias": True, "tie_word_embeddings": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    hidden, inner, bias = config.integer("hidden_size"), config.integer("intermediate_size"), config.flag("bias", True)
    block = (
        *attention(config, heads, bias, bias),
        *linear("mlp.gate_proj", inner, hidden),
        *linear("mlp.down_proj", hidden, inner),
        *linear("mlp.up_proj", inner, hidden),
        *block_norms(config, "input_layernorm", "post_attention_layernorm"),
    )
    frequencies = (Buffer("self_attn.rotary_emb.inv_freq", ((heads.size + 1) // 2,)),)
    return llama_frame(
        config, "InternLMForCausalLM", "InternLMDecoderLayer", block, (), block_buffers=frequencies, shapes="formula"
    )
