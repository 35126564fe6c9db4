"""Llama 3.2 Vision: a tower in two stages, and gated cross-attention blocks between those of the text model.

The text embedding has 8 rows more than the head (image tokens), and the projector is listed after the text model.
"""

from __future__ import annotations

from estimators.errors import InputError, short
from estimators.model.families.common import Config, embedding, linear, norm
from estimators.model.families.decoder import Parameters, attention, block_norms, gated_mlp, read_heads, rotary
from estimators.model.families.pieces import integers, interleaved, layer_count, patch_count, root, under
from estimators.model.families.vit import mlp, patches
from estimators.model.spec import ModelSpec, Parameter, Part

# transformers MllamaConfig, MllamaTextConfig, MllamaVisionConfig
DEFAULTS: dict[str, object] = {}
TEXT_DEFAULTS = {
    "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "cross_attention_layers": (3, 8, 13, 18, 23, 28, 33, 38),
}  # fmt: skip
VISION_DEFAULTS = {
    "hidden_size": 1280, "num_hidden_layers": 32, "num_global_layers": 8, "attention_heads": 16, "num_channels": 3,
    "intermediate_size": 5120, "vision_output_dim": 7680, "image_size": 448, "patch_size": 14, "max_num_tiles": 4,
}  # fmt: skip
ASPECT_RATIOS = 8  # that four tiles can take
IMAGE_TOKENS = 8
TOWER, TEXT = "model.vision_model", "model.language_model"


def gate(name: str) -> Parameters:
    return (Parameter(name, (1,), "other"),)


def vision_blocks(config: Config, name: str, count: int, gated: bool) -> Part:
    """Attention without biases, MLP with; the global stage gates both."""
    config.divided("hidden_size", "attention_heads")
    hidden = config.integer("hidden_size")
    block = (
        *((*gate("gate_attn"), *gate("gate_ffn")) if gated else ()),
        *(p for n in "qkvo" for p in linear(f"self_attn.{n}_proj", hidden, hidden)),
        *mlp(hidden, config.integer("intermediate_size")),
        *norm("input_layernorm", hidden, bias=True),
        *norm("post_attention_layernorm", hidden, bias=True),
    )
    return Part(block, count, f"{TOWER}.{name}.layers.{{}}", class_name="MllamaVisionEncoderLayer", role="vision")


def aspect_ratios(config: Config) -> int:
    given = config.raw("supported_aspect_ratios")
    if given is not None and not (isinstance(given, list | tuple) and given):
        raise InputError(f"{config.where}: supported_aspect_ratios is {short(given)}; give a list of pairs")
    return ASPECT_RATIOS if given is None else len(given)


def vision_tower(config: Config) -> tuple[Part, ...]:
    hidden, tiles, places = config.integer("hidden_size"), config.integer("max_num_tiles"), patch_count(config) + 1
    rows = aspect_ratios(config) + 1  # one for padding
    positions = "gated_positional_embedding"
    embeddings = (
        Parameter("class_embedding", (hidden,), "other"),
        *patches(config, "patch_embedding", bias=False),
        *gate(f"{positions}.gate"),
        Parameter(f"{positions}.embedding", (places, hidden), "other"),
        *embedding(f"{positions}.tile_embedding", rows, tiles * places * hidden),
        *gate("pre_tile_positional_embedding.gate"),
        *embedding("pre_tile_positional_embedding.embedding", rows, tiles * hidden),
        *gate("post_tile_positional_embedding.gate"),
        *embedding("post_tile_positional_embedding.embedding", rows, tiles * hidden),
        *norm("layernorm_pre", hidden, bias=True),
        *norm("layernorm_post", hidden, bias=True),
    )
    return (
        root(under(TOWER, embeddings), role="vision"),
        vision_blocks(config, "transformer", config.integer("num_hidden_layers"), gated=False),
        vision_blocks(config, "global_transformer", config.integer("num_global_layers"), gated=True),
    )


def text_blocks(config: Config) -> tuple[Part, ...]:
    heads, cross = read_heads(config), set(integers(config, "cross_attention_layers"))

    def block(kind: str) -> Part:
        if kind == "self":
            norms = block_norms(config, "input_layernorm", "post_attention_layernorm")
            parameters = (*attention(config, heads), *gated_mlp(config), *norms)
            return Part(parameters, prefix=f"{TEXT}.layers.{{}}", class_name="MllamaSelfAttentionDecoderLayer")
        parameters = (
            *gate("cross_attn_attn_gate"),
            *gate("cross_attn_mlp_gate"),
            *cross_attention(attention(config, heads), heads.size),
            *block_norms(config, "input_layernorm"),
            *gated_mlp(config),
            *block_norms(config, "post_attention_layernorm"),
        )
        return Part(parameters, prefix=f"{TEXT}.layers.{{}}", class_name="MllamaCrossAttentionDecoderLayer")

    kinds = ("cross" if i in cross else "self" for i in range(layer_count(config)))
    return tuple(interleaved(kinds, block))


def cross_attention(projections: Parameters, head: int) -> Parameters:
    """The projections of self-attention under another name, and norms on each head."""
    moved = tuple(Parameter(p.name.replace("self_attn", "cross_attn"), p.shape, p.kind) for p in projections)
    return (*moved, *norm("cross_attn.q_norm", head), *norm("cross_attn.k_norm", head))


def build(config: Config) -> ModelSpec:
    text, vision = config.section("text_config", TEXT_DEFAULTS), config.section("vision_config", VISION_DEFAULTS)
    hidden, rows = text.integer("hidden_size"), text.integer("vocab_size")
    size = read_heads(text).size
    return ModelSpec(
        name="",
        family="mllama",
        class_name="MllamaForConditionalGeneration",
        parts=(
            *vision_tower(vision),
            root(embedding(f"{TEXT}.embed_tokens", rows + IMAGE_TOKENS, hidden)),
            *text_blocks(text),
            root(norm(f"{TEXT}.norm", hidden), buffers=rotary(text, size, module=f"{TEXT}.rotary_emb")),
            root(linear("model.multi_modal_projector", hidden, vision.integer("vision_output_dim"), bias=True),
                 role="projector"),
            root(linear("lm_head", rows, hidden)),
        ),
        config=config.values,
        embedding=f"{TEXT}.embed_tokens",
        head="lm_head",
    )  # fmt: skip
