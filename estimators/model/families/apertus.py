"""Apertus: norms on queries and keys, an MLP without a gate whose activation (xIELU) trains two scalars."""

from __future__ import annotations

from estimators.model.families.common import Config, norm
from estimators.model.families.decoder import attention, block_norms, llama_frame, read_heads, rotary, up_down_mlp
from estimators.model.spec import Buffer, ModelSpec, Parameter

# transformers ApertusConfig
DEFAULTS = {
    "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "tie_word_embeddings": False, "attention_bias": False,
}  # fmt: skip
XIELU = (Parameter("mlp.act_fn.alpha_p", (1,), "other"), Parameter("mlp.act_fn.alpha_n", (1,), "other"))
XIELU_BUFFERS = (Buffer("mlp.act_fn.beta", (), persistent=True), Buffer("mlp.act_fn.eps", (), persistent=True))


def build(config: Config) -> ModelSpec:
    heads = read_heads(config)
    bias = config.flag("attention_bias")
    xielu = config.text("hidden_act", "xielu") == "xielu"
    block = (
        *attention(config, heads, bias, bias),
        *norm("self_attn.q_norm", heads.size),
        *norm("self_attn.k_norm", heads.size),
        *up_down_mlp(config),
        *(XIELU if xielu else ()),
        *block_norms(config, "attention_layernorm", "feedforward_layernorm"),
    )
    return llama_frame(
        config,
        "ApertusForCausalLM",
        "ApertusDecoderLayer",
        block,
        rotary(config, heads.size),
        block_buffers=XIELU_BUFFERS if xielu else (),
    )
