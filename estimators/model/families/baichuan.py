"""Baichuan and Baichuan 2, 7B and 13B (hub code): Llama with q, k, v in one tensor and up after down.

7B rotates and names its layers ``DecoderLayer``; 13B uses ALiBi, names them ``BaichuanLayer``, and its config has no
``max_position_embeddings``. Baichuan 2 (``z_loss_weight``) normalises the head, which is then not ``nn.Linear``.
"""

from __future__ import annotations

from estimators.model.families.common import Config, linear
from estimators.model.families.decoder import block_norms, llama_frame
from estimators.model.spec import Buffer, ModelSpec
from estimators.values import replace

# BaichuanConfig of the hub (7B)
DEFAULTS = {
    "vocab_size": 64000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "tie_word_embeddings": False,
}  # fmt: skip
ALSO_NAMED = ("BaiChuanForCausalLM",)  # the first 7B


def build(config: Config) -> ModelSpec:
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    head_size = config.divided("hidden_size", "num_attention_heads")
    rotates = config.raw("max_position_embeddings") is not None
    block = (
        *linear("self_attn.W_pack", 3 * hidden, hidden),
        *linear("self_attn.o_proj", hidden, hidden),
        *linear("mlp.gate_proj", inner, hidden),
        *linear("mlp.down_proj", hidden, inner),
        *linear("mlp.up_proj", inner, hidden),
        *block_norms(config, "input_layernorm", "post_attention_layernorm"),
    )
    frequencies = (Buffer("self_attn.rotary_emb.inv_freq", ((head_size + 1) // 2,)),) if rotates else ()
    spec = llama_frame(
        config,
        "BaichuanForCausalLM",
        "DecoderLayer" if rotates else "BaichuanLayer",
        block,
        (),
        block_buffers=frequencies,
        shapes="formula",
    )
    if config.raw("z_loss_weight") is None or spec.tied:
        return spec
    head = spec.parts[-1]
    normalised = tuple(replace(parameter, kind="other") for parameter in head.parameters)
    return replace(spec, parts=(*spec.parts[:-1], replace(head, parameters=normalised)))
