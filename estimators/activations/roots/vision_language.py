"""Vision-language models: patches and projector before the language model, whose embeddings take image features in."""

from __future__ import annotations

from estimators.activations.blocks.qwen_vl import patches
from estimators.activations.blocks.qwen_vl import width as patch_width
from estimators.activations.blocks.vision import grid
from estimators.activations.builder import Builder
from estimators.activations.roots import Joint, Roots, first_of
from estimators.activations.roots.images import image_elements, over_pixels
from estimators.activations.roots.pieces import convolution, lookup, nothing, over_ids, parameter
from estimators.activations.streams import Over
from estimators.activations.tape import Gradient, Tensor
from estimators.model.spec import ModelSpec

INT64 = 8


def words_and_images(model: ModelSpec) -> object:
    """``inputs_embeds.masked_scatter(mask, image_features)``: keeps the mask, a bool a token."""

    def run(b: Builder, ids: Tensor) -> Tensor:
        words = lookup(b, model.embedding, ids)
        if model.family == "gemma3":
            words = b.scale(words, "scaled words")
        tape, shape, dtype = b.tape, words.shape, words.dtype
        mask, made = tape.new("image mask", ("B", "S", 1), "bool"), tape.new("words and images", shape, dtype)

        def backward(_: Tensor) -> list[Gradient]:
            return [tape.new("gradient of words", shape, dtype)]

        return tape.record(made, "masked_scatter", [words], [("image mask", mask)], backward)

    return over_ids(run)


def llava(model: ModelSpec) -> Roots:
    """CLIP's embeddings and first norm; a projector of two layers over the patches, its class token left out."""
    text, tower = first_of(model, "decoder"), "model.vision_tower"
    images = image_elements(dict(model.config["vision_config"]))  # type: ignore[call-overload]

    def see(b: Builder, x: Tensor) -> Tensor:
        made = convolution(b, x, f"{tower}.embeddings.patch_embedding", ("B", grid(b), b.width))
        token = parameter(b, f"{tower}.embeddings.class_embedding", ("B", 1, b.width))
        hidden = b.cat([token, made], ("B", grid(b) + 1, b.width))
        del made, token
        places = nothing(b, (1, grid(b) + 1))
        hidden = b.add(hidden, lookup(b, f"{tower}.embeddings.position_embedding", places, (1, grid(b) + 1)))
        return b.norm(hidden, f"{tower}.pre_layrnorm")

    def project(b: Builder, x: Tensor) -> Tensor:
        stem = "model.multi_modal_projector"
        x = b.contiguous(b.narrow(x, ("B", grid(b), b.width)))  # a product wants whole rows
        x = b.module(x, f"{stem}.linear_1")
        x = b.activation("gelu", x)
        x = b.module(x, f"{stem}.linear_2")
        return b.contiguous(x, name="features side by side")

    def inputs(batch: int, seq: int, count: int, real: int) -> int:
        return batch * (2 * seq * INT64 + count * images * real)

    return Roots((
        Joint(0, over_pixels(see), "vision", from_data=True),
        Joint(text, Over(lambda b: ("B", grid(b) + 1, b.width), project), "vision"),
        Joint(text, words_and_images(model), from_data=True),  # type: ignore[arg-type]
    ), inputs=inputs)  # fmt: skip


def qwen2_vl(model: ModelSpec) -> Roots:
    """Patches come cut and flattened; a norm and two layers over squares of patches behind the tower."""
    text = first_of(model, "decoder")
    vision = dict(model.config["vision_config"])  # type: ignore[call-overload]
    cut = int(vision.get("in_channels", 3)) * int(vision.get("temporal_patch_size", 2)) * int(vision["patch_size"]) ** 2
    square = int(vision.get("spatial_merge_size", 2)) ** 2

    def see(b: Builder, x: Tensor) -> Tensor:
        return convolution(b, x, "model.visual.patch_embed.proj", ("B", patches(b), patch_width(b)))

    def merge(b: Builder, x: Tensor) -> Tensor:
        name = "model.visual.merger.ln_q"
        x = b.norm(x, name) if b.weight(f"{name}.bias") is not None else b.rms_norm(x, name)
        x = b.view(x, ("B", patches(b) // square, square * patch_width(b)))
        x = b.activation("gelu", b.module(x, "model.visual.merger.mlp.0"))
        x = b.module(x, "model.visual.merger.mlp.2")
        return b.contiguous(x, name="features side by side")

    def inputs(batch: int, seq: int, count: int, real: int) -> int:
        return batch * (2 * seq * INT64 + count * cut * real)

    return Roots((
        Joint(0, Over(lambda b: ("B", patches(b), cut), see), "vision", from_data=True),
        Joint(text, Over(lambda b: ("B", patches(b), patch_width(b)), merge), "vision"),
        Joint(text, words_and_images(model), from_data=True),  # type: ignore[arg-type]
    ), inputs=inputs)  # fmt: skip


def gemma3(model: ModelSpec) -> Roots:
    """SigLIP's embeddings; its last norm, pooled patches, a norm and a bare weight; words are scaled."""
    text, tower = first_of(model, "decoder"), "model.vision_tower"
    vision = dict(model.config["vision_config"])  # type: ignore[call-overload]
    images, pooled = image_elements(vision), int(str(model.config.get("mm_tokens_per_image", 256)))

    def see(b: Builder, x: Tensor) -> Tensor:
        made = convolution(b, x, f"{tower}.embeddings.patch_embedding", ("B", grid(b), b.width))
        return b.add(made, lookup(b, f"{tower}.embeddings.position_embedding", nothing(b, (1, grid(b))), (1, grid(b))))

    def project(b: Builder, x: Tensor) -> Tensor:
        stem = "model.multi_modal_projector"
        x = b.norm(x, f"{tower}.post_layernorm")
        x = average(b, b.contiguous(x, name="patches in rows and columns"), ("B", pooled, b.width))
        x = b.gemma_norm(x, f"{stem}.mm_soft_emb_norm")
        weight = b.need(f"{stem}.mm_input_projection_weight")
        return b.product(b.contiguous(x), weight, ("B", pooled, weight.shape[1]), "projection")

    def inputs(batch: int, seq: int, count: int, real: int) -> int:
        return batch * (3 * seq * INT64 + count * images * real)

    return Roots((
        Joint(0, over_pixels(see), "vision", from_data=True),
        Joint(text, Over(lambda b: ("B", grid(b), b.width), project), "vision"),
        Joint(text, words_and_images(model), from_data=True),  # type: ignore[arg-type]
    ), inputs=inputs)  # fmt: skip


def average(b: Builder, x: Tensor, shape: tuple[int | str, ...]) -> Tensor:
    """AvgPool2d: keeps its input."""
    tape, before, dtype = b.tape, x.shape, x.dtype
    return tape.record(tape.new("pooled", shape, dtype), "avg_pool2d", [x], [("pooled: input", x)],
                       lambda g: [tape.new("gradient of pooled", before, dtype)])  # fmt: skip
