"""Command R: one norm before parallel attention and MLP; optional norms on queries and keys are matrices."""

from __future__ import annotations

from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, block_norms, gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec, Parameter

# transformers CohereConfig
DEFAULTS = {
    "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
    "num_attention_heads": 64, "tie_word_embeddings": True, "attention_bias": False, "use_qk_norm": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    bias = config.flag("attention_bias")
    block = list(attention(config, heads, bias, bias))
    if config.flag("use_qk_norm"):
        block += (
            Parameter("self_attn.q_norm.weight", (heads.queries, heads.size), "norm"),
            Parameter("self_attn.k_norm.weight", (heads.kv, heads.size), "norm"),
        )
    block += gated_mlp(config)
    block += block_norms(config, "input_layernorm")
    return llama_frame(config, "CohereForCausalLM", "CohereDecoderLayer", tuple(block), rotary(config, heads.size))
