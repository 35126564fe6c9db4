"""Vision-language models: patches and projector before the language model, whose embeddings take image features in."""

from __future__ import annotations

from estimators.activations.blocks.qwen_vl import DEFAULT_PATCHES, patches
from estimators.activations.blocks.qwen_vl import width as patch_width
from estimators.activations.blocks.vision import grid, over_patches
from estimators.activations.builder import Builder
from estimators.activations.roots import Joint, Roots, first_of
from estimators.activations.roots.images import image_elements, over_pixels, patches_and_tokens
from estimators.activations.roots.pieces import convolution, lookup, nothing, over_ids, parameter
from estimators.activations.routing import total
from estimators.activations.streams import Over
from estimators.activations.tape import Gradient, Tensor
from estimators.model.spec import ModelSpec


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


def words_alone(model: ModelSpec) -> object:
    """The words, which wait for the images in the model's forward; nothing keeps them, and ids are counted elsewhere."""

    def run(b: Builder, ids: Tensor) -> Tensor:
        words = lookup(b, model.embedding, ids)
        b.frame.append(words)
        return words

    return over_ids(run)


def in_outputs(b: Builder, features: Tensor) -> Tensor:
    """The model's outputs hold the tower's last hidden states and the features (``image_outputs``) until the loss is
    there."""
    b.outputs.append(features)
    return features


def llava(model: ModelSpec) -> Roots:
    """CLIP's embeddings and first norm; a projector of two layers over the patches, its class token left out."""
    tower = "model.vision_tower"
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
        x = b.contiguous(b.narrow(in_outputs(b, x), ("B", grid(b), b.width)))  # a product wants whole rows
        x = b.module(x, f"{stem}.linear_1")
        x = b.activation("gelu", x)
        x = b.module(x, f"{stem}.linear_2")
        return b.contiguous(in_outputs(b, x), name="features side by side")

    return _with_images(model, images, over_pixels(see), Over(over_patches(1), project))


def qwen2_vl(model: ModelSpec) -> Roots:
    """Patches come cut and flattened; a norm and two layers over squares of patches behind the tower."""
    vision = dict(model.config["vision_config"])  # type: ignore[call-overload]
    cut = int(vision.get("in_channels", 3)) * int(vision.get("temporal_patch_size", 2)) * int(vision["patch_size"]) ** 2
    square = int(vision.get("spatial_merge_size", 2)) ** 2

    def see(b: Builder, x: Tensor) -> Tensor:
        return convolution(b, x, "model.visual.patch_embed.proj", ("B", patches(b), patch_width(b)))

    def merge(b: Builder, x: Tensor) -> Tensor:
        name, x = "model.visual.merger.ln_q", in_outputs(b, x)
        x = b.norm(x, name) if b.weight(f"{name}.bias") is not None else b.rms_norm(x, name)
        x = b.view(x, ("B", patches(b) // square, square * patch_width(b)))
        x = b.activation("gelu", b.module(x, "model.visual.merger.mlp.0"))
        x = b.module(x, "model.visual.merger.mlp.2")
        return b.contiguous(in_outputs(b, x), name="features side by side")

    pixels = Over(lambda b: ("B", patches(b), cut), see)
    projector = Over(lambda b: ("B", patches(b), patch_width(b)), merge)
    return _with_images(model, cut, pixels, projector, 3, any_size=True)  # token types besides


def internvl(model: ModelSpec) -> Roots:
    """InternViT's embeddings; patches without the class token, shuffled four to one, a norm and two layers."""
    tower, stem = "model.vision_tower", "model.multi_modal_projector"
    vision = dict(model.config["vision_config"])  # type: ignore[call-overload]
    images, ratio = image_elements(vision), model.config.get("downsample_ratio", 0.5)
    assert isinstance(ratio, int | float), ratio
    square = int(1 / ratio) ** 2

    def project(b: Builder, x: Tensor) -> Tensor:
        if b.weight(f"{tower}.layernorm.weight") is not None:
            x = b.norm(x, f"{tower}.layernorm")
        x = b.narrow(in_outputs(b, x), ("B", grid(b), b.width))
        x = b.contiguous(x, name="rows shuffled")
        x = b.contiguous(x, ("B", grid(b) // square, square * b.width), name="columns shuffled")
        x = b.norm(x, f"{stem}.layer_norm")
        x = b.module(x, f"{stem}.linear_1")
        x = b.activation("gelu", x)
        return in_outputs(b, b.module(x, f"{stem}.linear_2"))

    see = patches_and_tokens(f"{tower}.embeddings", ("cls_token",), "hidden_dropout_prob")
    return _with_images(model, images, over_pixels(see), Over(over_patches(1), project))


def idefics3(model: ModelSpec) -> Roots:
    """Idefics 3, SmolVLM: images that are not padding are copied out; positions of every image; patches shuffled."""
    tower = "model.vision_model"
    vision = dict(model.config["vision_config"])  # type: ignore[call-overload]
    images, square = image_elements(vision), int(str(model.config.get("scale_factor", 2))) ** 2

    def see(b: Builder, x: Tensor) -> Tensor:
        real = b.tape.new("images that are not padding", x.shape, b.stream)
        made = convolution(b, real, f"{tower}.embeddings.patch_embedding", ("B", grid(b), b.width))
        del real
        places = b.tape.new("places of patches", ("B", grid(b)), "int64")
        return b.add(made, lookup(b, f"{tower}.embeddings.position_embedding", places, ("B", grid(b))))

    def project(b: Builder, x: Tensor) -> Tensor:
        x = in_outputs(b, b.norm(x, f"{tower}.post_layernorm"))
        x = b.contiguous(x, name="rows shuffled")
        x = b.contiguous(x, ("B", grid(b) // square, square * b.width), name="columns shuffled")
        x = b.module(x, "model.connector.modality_projection.proj")
        return b.contiguous(in_outputs(b, x), name="features side by side")

    return _with_images(model, images, over_pixels(see), Over(over_patches(), project))


def mistral3(model: ModelSpec) -> Roots:
    """Pixtral's patches side by side and a norm; a norm, patches unfolded four to one, three layers."""
    tower, stem = "model.vision_tower", "model.multi_modal_projector"
    vision = dict(model.config["vision_config"])  # type: ignore[call-overload]
    images, square = image_elements(vision), int(str(model.config.get("spatial_merge_size", 2))) ** 2

    def see(b: Builder, x: Tensor) -> Tensor:
        made = convolution(b, x, f"{tower}.patch_conv", ("B", grid(b), b.width))
        b.frame.append(made)
        made = b.contiguous(made, name="patches side by side")
        return b.rms_norm(made, f"{tower}.ln_pre")

    def project(b: Builder, x: Tensor) -> Tensor:
        x = b.rms_norm(in_outputs(b, x), f"{stem}.norm")
        x = b.contiguous(x, name="unfolded")
        x = b.contiguous(x, ("B", grid(b) // square, square * b.width), name="patches side by side")
        x = b.module(x, f"{stem}.patch_merger.merging_layer")
        x = b.module(x, f"{stem}.linear_1")
        x = b.activation("gelu", x)
        x = b.module(x, f"{stem}.linear_2")
        return b.contiguous(in_outputs(b, x), name="features side by side")

    return _with_images(model, images, over_pixels(see), Over(over_patches(), project))


def paligemma(model: ModelSpec) -> Roots:
    """SigLIP's embeddings; its last norm and one layer; words as they are."""
    tower = "model.vision_tower"
    images = image_elements(dict(model.config["vision_config"]))  # type: ignore[call-overload]

    def see(b: Builder, x: Tensor) -> Tensor:
        made = convolution(b, x, f"{tower}.embeddings.patch_embedding", ("B", grid(b), b.width))
        return b.add(made, lookup(b, f"{tower}.embeddings.position_embedding", nothing(b, (1, grid(b))), (1, grid(b))))

    def project(b: Builder, x: Tensor) -> Tensor:
        x = b.norm(x, f"{tower}.post_layernorm")
        return in_outputs(b, b.module(x, "model.multi_modal_projector.linear"))

    return _with_images(model, images, over_pixels(see), Over(over_patches(), project))


def _with_images(
    model: ModelSpec, elements: int, see: Over, project: Over, rows: int = 2, any_size: bool = False
) -> Roots:
    """``see`` in front of the tower, ``project`` behind it; then the words that take the features in.

    ``elements`` are numbers of an image, or of a patch of images of ``any_size``; ``rows`` numbers of a token: ids and
    labels.
    """

    def reals(batch: int, count: int, each: int) -> int:
        return batch * count * elements * ((each or DEFAULT_PATCHES) if any_size else 1)

    text = first_of(model, "decoder")
    return Roots((
        Joint(0, words_alone(model), from_data=True),  # type: ignore[arg-type]
        Joint(0, see, "vision", from_data=True),
        Joint(text, project, "vision"),
        Joint(text, words_and_images(model), from_data=True),  # type: ignore[arg-type]
    ), reals=reals, integers=lambda batch, seq: rows * batch * seq)  # fmt: skip


def qwen3_vl(model: ModelSpec) -> Roots:
    """Patches plus learned positions, interpolated in fp32 from four neighbours; a merger behind the tower, and one for
    each layer whose features go deep into the language model.

    The deep mergers run inside the tower; they are counted with the last one, with which they share what they keep:
    their input is kept by the block that follows it. What the language model does with deep features lives only between
    its blocks.
    """
    vision = dict(model.config["vision_config"])  # type: ignore[call-overload]
    cut = (
        int(vision.get("in_channels", 3))
        * int(vision.get("temporal_patch_size", 2))
        * int(vision.get("patch_size", 16)) ** 2
    )
    square, stem = int(vision.get("spatial_merge_size", 2)) ** 2, "model.visual"
    deep = len(tuple(vision.get("deepstack_visual_indexes", (8, 16, 24))))

    def see(b: Builder, x: Tensor) -> Tensor:
        width = patch_width(b)
        made = convolution(b, x, f"{stem}.patch_embed.proj", ("B", patches(b), width))
        neighbours: tuple[int | str, ...] = ("B", patches(b), 4)
        weights = b.tape.new("interpolation weights", (*neighbours, 1), "fp32")
        places = b.tape.new("neighbours", neighbours, "int64")
        found = lookup(b, f"{stem}.pos_embed", places, neighbours)
        here = total(b, b.multiply(found, weights, "weighted neighbours"), ("B", patches(b), width), "positions")
        del found
        return b.add(made, b.cast(here, made.dtype))

    def merge(b: Builder, x: Tensor) -> Tensor:
        features = [merged(b, x, f"{stem}.deepstack_merger_list.{index}", True) for index in range(deep)]
        b.frame += features
        made = merged(b, x, f"{stem}.merger", False)
        del x
        for feature in features:
            made = joined(b, made, feature)
        return b.contiguous(in_outputs(b, made), name="features side by side")

    def merged(b: Builder, x: Tensor, name: str, after: bool) -> Tensor:
        flat: tuple[int | str, ...] = ("B", patches(b) // square, square * patch_width(b))
        made = b.norm(b.view(x, flat), f"{name}.norm") if after else b.view(b.norm(x, f"{name}.norm"), flat)
        return b.module(b.activation("gelu", b.module(made, f"{name}.linear_fc1")), f"{name}.linear_fc2")

    pixels = Over(lambda b: ("B", patches(b), cut), see)
    projector = Over(lambda b: ("B", patches(b), patch_width(b)), merge)
    return _with_images(model, cut, pixels, projector, 3, any_size=True)  # token types besides


def joined(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    """Both go on from here: one tensor in the place of two, without memory of its own."""
    result = Tensor(x.storage, x.shape, x.dtype, base=x.base or x)
    return b.tape.record(result, "features", [x, y], [], lambda g: [g, g])


def gemma3(model: ModelSpec) -> Roots:
    """SigLIP's embeddings; its last norm, pooled patches, a norm and a bare weight; words are scaled."""
    tower = "model.vision_tower"
    vision = dict(model.config["vision_config"])  # type: ignore[call-overload]
    images, pooled = image_elements(vision), int(str(model.config.get("mm_tokens_per_image", 256)))

    def see(b: Builder, x: Tensor) -> Tensor:
        made = convolution(b, x, f"{tower}.embeddings.patch_embedding", ("B", grid(b), b.width))
        return b.add(made, lookup(b, f"{tower}.embeddings.position_embedding", nothing(b, (1, grid(b))), (1, grid(b))))

    def project(b: Builder, x: Tensor) -> Tensor:
        stem = "model.multi_modal_projector"
        x = in_outputs(b, b.norm(x, f"{tower}.post_layernorm"))
        x = average(b, b.contiguous(x, name="patches in rows and columns"), ("B", pooled, b.width))
        x = b.gemma_norm(x, f"{stem}.mm_soft_emb_norm")
        weight = b.need(f"{stem}.mm_input_projection_weight")
        return in_outputs(b, b.product(b.contiguous(x), weight, ("B", pooled, weight.shape[1]), "projection"))

    return _with_images(model, images, over_pixels(see), Over(over_patches(), project), 3)  # token types besides


def average(b: Builder, x: Tensor, shape: tuple[int | str, ...]) -> Tensor:
    """AvgPool2d: keeps its input."""
    tape, before, dtype = b.tape, x.shape, x.dtype
    return tape.record(tape.new("pooled", shape, dtype), "avg_pool2d", [x], [("pooled: input", x)],
                       lambda g: [tape.new("gradient of pooled", before, dtype)])  # fmt: skip
