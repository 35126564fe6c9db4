"""MiniCPM 1 to 4, dense (hub code): Llama's block, tied head; every layer holds cosines and sines of all positions."""

from __future__ import annotations

from estimators.errors import NotModelled
from estimators.model.families.common import Config
from estimators.model.families.decoder import attention, block_norms, gated_mlp, llama_frame, read_heads
from estimators.model.spec import Buffer, ModelSpec

# MiniCPMConfig of the hub
DEFAULTS = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048, "attention_bias": False, "tie_word_embeddings": True,
}  # fmt: skip


def build(config: Config) -> ModelSpec:
    if config.integer("num_experts", 0, minimum=0):
        raise NotModelled(f"{config.where}: num_experts is set, and the formula is that of the dense MiniCPM")
    heads = read_heads(config)
    bias = config.flag("attention_bias")
    block = (
        *attention(config, heads, bias, bias),
        *gated_mlp(config),
        *block_norms(config, "input_layernorm", "post_attention_layernorm"),
    )
    table = (config.integer("max_position_embeddings"), 2 * ((heads.size + 1) // 2))
    tables = (
        Buffer("self_attn.rotary_emb.inv_freq", ((heads.size + 1) // 2,)),
        Buffer("self_attn.rotary_emb.cos_cached", table),
        Buffer("self_attn.rotary_emb.sin_cached", table),
    )
    return llama_frame(
        config, "MiniCPMForCausalLM", "MiniCPMDecoderLayer", block, (), block_buffers=tables, shapes="formula"
    )
