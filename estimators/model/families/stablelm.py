"""StableLM 2 and 3B: LayerNorm; one LayerNorm for each head of queries and keys where asked; a quarter rotated."""

from __future__ import annotations

from estimators.model.families.common import Config, norm
from estimators.model.families.decoder import attention, block_norms, gated_mlp, llama_frame, read_heads, rotary
from estimators.model.spec import ModelSpec

# transformers StableLmConfig
DEFAULTS = {
    "vocab_size": 50304, "hidden_size": 2560, "intermediate_size": 6912, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "tie_word_embeddings": False, "use_qkv_bias": False,
    "qk_layernorm": False, "use_parallel_residual": False,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    heads = read_heads(config.without("head_dim"))
    block = list(attention(config, heads, config.flag("use_qkv_bias")))
    if config.flag("qk_layernorm"):
        for name, count in (("q_layernorm", heads.queries), ("k_layernorm", heads.kv)):
            for index in range(count):
                block += norm(f"self_attn.{name}.norms.{index}", heads.size)
    block += gated_mlp(config)
    block += block_norms(config, "input_layernorm", bias=True)
    if not config.flag("use_parallel_residual"):
        block += block_norms(config, "post_attention_layernorm", bias=True)
    return llama_frame(
        config,
        "StableLmForCausalLM",
        "StableLmDecoderLayer",
        tuple(block),
        rotary(config, heads.size, partial=0.25),
        norm("model.norm", config.integer("hidden_size"), bias=True),
    )
