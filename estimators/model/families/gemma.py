"""Gemma: Llama's block with a free ``head_dim``; the embedding scales its output and holds the factor as a buffer."""

from __future__ import annotations

from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, block_norms, gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import Buffer, ModelSpec

# transformers GemmaConfig
DEFAULTS = {
    "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True,
    "attention_bias": False,
}  # fmt: skip
EMBED_SCALE = Buffer("model.embed_tokens.embed_scale", (), is_number=True)


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    bias = config.flag("attention_bias")
    block = (
        *attention(config, heads, bias, bias),
        *gated_mlp(config),
        *block_norms(config, "input_layernorm", "post_attention_layernorm"),
    )
    buffers = (EMBED_SCALE, *rotary(config, heads.size))
    return llama_frame(config, "GemmaForCausalLM", "GemmaDecoderLayer", block, buffers)
