"""gpt-oss: attention sinks, experts with biases and transposed weights, norms kept in fp32 beside fp16."""

from __future__ import annotations

from estimators.model.families import moe
from estimators.model.families.common import Config, norm
from estimators.model.families.decoder import Parameters, attention, read_heads, rotary
from estimators.model.spec import ModelSpec, Parameter
from estimators.values import replace

# transformers GptOssConfig
DEFAULTS = {
    "num_hidden_layers": 36, "num_local_experts": 128, "vocab_size": 201088, "hidden_size": 2880,
    "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
    "num_experts_per_tok": 4, "attention_bias": True, "tie_word_embeddings": False,
}  # fmt: skip


def experts_with_bias(name: str, experts: int, hidden: int, width: int) -> Parameters:
    return (
        Parameter(f"{name}.gate_up_proj", (experts, hidden, 2 * width), "experts"),
        Parameter(f"{name}.gate_up_proj_bias", (experts, 2 * width), "experts"),
        Parameter(f"{name}.down_proj", (experts, width, hidden), "experts"),
        Parameter(f"{name}.down_proj_bias", (experts, hidden), "experts"),
    )


def keep_norms(parameters: Parameters) -> Parameters:
    return tuple(replace(p, keep_fp32="fp16") if p.kind == "norm" else p for p in parameters)


def build(config: Config) -> ModelSpec:
    hidden, heads, bias = config.integer("hidden_size"), read_heads(config), config.flag("attention_bias")
    experts = moe.expert_count(config, "num_experts", "num_local_experts")
    block = (
        Parameter("self_attn.sinks", (config.integer("num_attention_heads"),), "other"),
        *attention(config, heads, bias, bias),
        *moe.router("mlp.router", experts, hidden),
        Parameter("mlp.router.bias", (experts,), "other"),
        *experts_with_bias("mlp.experts", experts, hidden, config.integer("intermediate_size")),
        *moe.layer_norms(hidden),
    )
    run = moe.layers(keep_norms(block), "GptOssDecoderLayer", config.integer("num_hidden_layers"))
    return moe.decoder_only(
        config, "GptOssForCausalLM", [run], rotary(config, heads.size), keep_norms(norm("model.norm", hidden))
    )
