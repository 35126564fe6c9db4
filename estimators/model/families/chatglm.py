"""ChatGLM2, ChatGLM3, GLM-4-9B (hub code): key-value groups, gate and up in one tensor, padded vocabulary.

ChatGLM-6B has the same ``model_type`` and another network (``inner_hidden_size``); it is refused.
"""

from __future__ import annotations

from estimators.errors import InputError, NotModelled
from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import causal_lm, root
from estimators.model.spec import Buffer, ModelSpec, Part

# ChatGLMConfig of the hub (ChatGLM2)
DEFAULTS = {
    "num_layers": 28, "padded_vocab_size": 65024, "hidden_size": 4096, "ffn_hidden_size": 13696, "kv_channels": 128,
    "num_attention_heads": 32, "multi_query_attention": False, "multi_query_group_num": 1, "add_bias_linear": False,
    "add_qkv_bias": False, "post_layer_norm": True, "rmsnorm": True, "tie_word_embeddings": False,
}  # fmt: skip
ALSO_NAMED = ("ChatGLMModel",)  # what the published configs name: the class with the head, through auto_map
COMMON_NAMES = {
    "num_layers": "num_hidden_layers",
    "padded_vocab_size": "vocab_size",
    "ffn_hidden_size": "intermediate_size",
}


def build(config: Config) -> ModelSpec:
    if config.raw("inner_hidden_size") is not None:
        raise NotModelled(f"{config.where}: inner_hidden_size is set; the first ChatGLM-6B has no formula here")
    config = config.without("vocab_size").renamed(COMMON_NAMES)
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    channels, width, kv_width = widths(config)
    bias, layer_norm = config.flag("add_bias_linear"), not config.flag("rmsnorm", True)
    block = (
        *norm("input_layernorm", hidden, layer_norm),
        *linear("self_attention.query_key_value", width + 2 * kv_width, hidden, bias or config.flag("add_qkv_bias")),
        *linear("self_attention.dense", hidden, width, bias),
        *norm("post_attention_layernorm", hidden, layer_norm),
        *linear("mlp.dense_h_to_4h", 2 * inner, hidden, bias),
        *linear("mlp.dense_4h_to_h", hidden, inner, bias),
    )
    final_norm = norm("transformer.encoder.final_layernorm", hidden, layer_norm)
    frequencies = Buffer("transformer.rotary_pos_emb.inv_freq", ((channels // 2 + 1) // 2,), persistent=True)
    layers = config.integer("num_hidden_layers")
    return causal_lm(
        config,
        "ChatGLMForConditionalGeneration",
        before=root(
            embedding("transformer.embedding.word_embeddings", config.integer("vocab_size"), hidden),
            buffers=(frequencies,),
        ),
        blocks=(Part(block, layers, "transformer.encoder.layers.{}", class_name="GLMBlock"),),
        after=root(final_norm if config.flag("post_layer_norm", True) else ()),
        embedding_name="transformer.embedding.word_embeddings",
        head="transformer.output_layer",
        shapes="formula",
    )


def widths(config: Config) -> tuple[int, int, int]:
    """Elements of a head, features of all queries, features of all keys."""
    queries = config.integer("num_attention_heads")
    size = config.integer("kv_channels", config.divided("hidden_size", "num_attention_heads"))
    groups = config.integer("multi_query_group_num") if config.flag("multi_query_attention") else queries
    if queries % groups:
        raise InputError(
            f"{config.where}: num_attention_heads {queries} is not a multiple of multi_query_group_num {groups}; "
            "correct one of them"
        )
    return size, queries * size, groups * size
