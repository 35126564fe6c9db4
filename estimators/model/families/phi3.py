"""Phi-3, 3.5, 4: Llama's block with q, k, v in one tensor and gate, up in one; the output projection comes first."""

from __future__ import annotations

from estimators.model.families.common import Config, linear
from estimators.model.families.decoder import block_norms, fused_gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers Phi3Config
DEFAULTS = {
    "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
    "num_attention_heads": 32, "tie_word_embeddings": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    hidden = config.integer("hidden_size")
    block = (
        *linear("self_attn.o_proj", hidden, heads.width),
        *linear("self_attn.qkv_proj", heads.width + 2 * heads.kv_width, hidden),
        *fused_gated_mlp(config),
        *block_norms(config, "input_layernorm", "post_attention_layernorm"),
    )
    buffers = rotary(config, heads.size, partial=1.0)
    return llama_frame(config, "Phi3ForCausalLM", "Phi3DecoderLayer", block, buffers)
