"""Patches of images, and a class of each: ViT, DeiT, DINOv2."""

from __future__ import annotations

from collections.abc import Callable

from estimators.activations.blocks.vision import grid, over_patches, pair
from estimators.activations.builder import Builder
from estimators.activations.losses import Loss, finished
from estimators.activations.roots import Head, Joint, Roots
from estimators.activations.roots.pieces import convolution, cross_entropy, named, parameter
from estimators.activations.streams import Over
from estimators.activations.tape import Dim, Tensor
from estimators.errors import NotModelled
from estimators.model.spec import ModelSpec


def pixels(b: Builder) -> tuple[Dim, ...]:
    """An image as the convolution sees it."""
    height, width = pair(b.config["image_size"])
    return ("B", b.number("num_channels", default=3), height, width)


def image_elements(config: object) -> int:
    """Numbers of an image of the size that a config states."""
    assert isinstance(config, dict), config
    if config.get("image_size") is None:
        raise NotModelled("its vision config states no image_size, which decides how large an image is")
    height, width = pair(config["image_size"])
    return int(config.get("num_channels", 3)) * height * width


def over_pixels(run: object) -> Over:
    return Over(pixels, run)  # type: ignore[arg-type]


def vit(model: ModelSpec) -> Roots:
    """ViTEmbeddings, DeiTEmbeddings (two tokens), and a classifier over the class token behind the final norm."""

    def classify(b: Builder, hidden: Tensor, loss: Loss) -> Tensor:
        normed = b.norm(hidden, f"{model.family}.layernorm")
        return classified(b, b.narrow(normed, ("B", b.width)), loss)

    return _images(model, ("cls_token", "distillation_token") if model.family == "deit" else ("cls_token",), classify)


def dinov2(model: ModelSpec) -> Roots:
    """Dinov2Embeddings, and a classifier over the class token beside the mean of the patches."""

    def classify(b: Builder, hidden: Tensor, loss: Loss) -> Tensor:
        normed = b.norm(hidden, f"{model.family}.layernorm")
        token = b.narrow(normed, ("B", b.width))
        mean = mean_of_patches(b, b.narrow(normed, ("B", grid(b), b.width)))
        return classified(b, b.cat([token, mean], ("B", 2 * b.width)), loss)

    return _images(model, ("cls_token",), classify)


def _images(model: ModelSpec, special: tuple[str, ...], head: Head) -> Roots:
    stem = model.embedding.rpartition(".")[0]
    images = image_elements(dict(model.config))

    see = patches_and_tokens(stem, special, "hidden_dropout_prob")
    return Roots(
        (Joint(0, over_pixels(see), "vision", from_data=True),),
        head,
        over_patches(len(special)),
        lambda batch, _images, _patches: batch * images,
        lambda batch, _seq: batch,
    )


def patches_and_tokens(stem: str, special: tuple[str, ...], drop: str) -> Callable[[Builder, Tensor], Tensor]:
    """A convolution, tokens of the model's own in front of its patches, learned positions, dropout."""

    def run(b: Builder, x: Tensor) -> Tensor:
        made = convolution(b, x, f"{stem}.patch_embeddings.projection", ("B", grid(b), b.width))
        tokens = [parameter(b, f"{stem}.{name}", ("B", 1, b.width)) for name in special]
        hidden = b.cat([*tokens, made], ("B", grid(b) + len(special), b.width))
        del made, tokens
        if b.weight(f"{stem}.position_embeddings") is not None:
            hidden = b.add(hidden, b.need(f"{stem}.position_embeddings"))
        return named(b, b.dropout(hidden, b.fraction(drop)))

    return run


def mean_of_patches(b: Builder, x: Tensor) -> Tensor:
    tape, shape, dtype = b.tape, x.shape, x.dtype
    return tape.record(tape.new("mean of patches", (shape[0], shape[-1]), dtype), "mean", [x], [],
                       lambda g: [tape.new("gradient of a mean", shape, dtype)])  # fmt: skip


def classified(b: Builder, pooled: Tensor, loss: Loss) -> Tensor:
    logits = [b.top(pooled, "classifier")]
    return finished(b, logits, cross_entropy(b, logits[0]), loss)
