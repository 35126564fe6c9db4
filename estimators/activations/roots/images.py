"""Patches of images, and a class of each: ViT."""

from __future__ import annotations

from estimators.activations.blocks.vision import grid, over_patches, pair
from estimators.activations.builder import Builder
from estimators.activations.losses import Loss
from estimators.activations.roots import Joint, Roots
from estimators.activations.roots.encoders import finished
from estimators.activations.roots.pieces import convolution, cross_entropy, parameter
from estimators.activations.streams import Over
from estimators.activations.tape import Dim, Tensor
from estimators.model.spec import ModelSpec

INT64 = 8


def pixels(b: Builder) -> tuple[Dim, ...]:
    """An image as the convolution sees it."""
    height, width = pair(b.config["image_size"])
    return ("B", b.number("num_channels", default=3), height, width)


def image_elements(config: object) -> int:
    """Numbers of an image of the size that a config states."""
    assert isinstance(config, dict), config
    height, width = pair(config["image_size"])
    return int(config.get("num_channels", 3)) * height * width


def over_pixels(run: object) -> Over:
    return Over(pixels, run)  # type: ignore[arg-type]


def vit(model: ModelSpec) -> Roots:
    """ViTEmbeddings, and a classifier over the class token behind the final norm."""
    stem = model.embedding.rpartition(".")[0]
    images = image_elements(dict(model.config))

    def run(b: Builder, x: Tensor) -> Tensor:
        made = convolution(b, x, f"{stem}.patch_embeddings.projection", ("B", grid(b), b.width))
        token = parameter(b, f"{stem}.cls_token", ("B", 1, b.width))
        hidden = b.cat([token, made], ("B", grid(b) + 1, b.width))
        del made, token
        hidden = b.add(hidden, b.need(f"{stem}.position_embeddings"))
        return b.dropout(hidden, b.fraction("hidden_dropout_prob"))

    def classify(b: Builder, hidden: Tensor, loss: Loss) -> Tensor:
        normed = b.norm(hidden, f"{model.family}.layernorm")
        pooled = b.narrow(normed, ("B", b.width))
        logits = b.module(pooled, "classifier")
        result = cross_entropy(b, logits)
        return finished(b, logits, result, loss)

    def inputs(batch: int, _seq: int, _images: int, real: int) -> int:
        return batch * (images * real + INT64)

    return Roots((Joint(0, over_pixels(run), "vision", from_data=True),), classify, over_patches(1), inputs)
