"""Whole small networks, from data to loss: every tensor that autograd keeps, and the largest moments of both ways.

Embeddings, patches, projectors, norms between stacks and heads have no module of their own that could be called alone;
here they are seen as what is kept beside the blocks.
"""

from __future__ import annotations

import contextlib
import unittest.mock
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from math import isqrt
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from estimators.activations.amounts import network_bytes, runs_of
from estimators.activations.head import head
from estimators.activations.losses import Loss
from estimators.activations.network import Network
from estimators.activations.profile import Conditions, profile
from estimators.activations.question import MASKS_IMAGES, Question
from estimators.activations.tape import evaluate
from estimators.model.spec import ModelSpec
from estimators.sites import END, Site
from estimators.values import replace
from tests.activations.other_cells import (
    MODE,
    Other,
    built,
    conditions_of,
    no_cache,
    nothing_padded,
    real_apply,
    spec_of,
)
from tests.activations.real import Truth, measure

Inputs = dict[str, torch.Tensor]
READS = ("idefics3", "mistral3")  # look at their images or at sizes of them: real numbers
SCALARS = 16  # bytes: a number for each sample, scalars that torch keeps for products with numbers


@dataclass(frozen=True)
class Whole(Other):
    """A whole network; ``images`` of a sample."""

    block: str = ""
    images: int = 1
    pieces: bool = False  # the real tensors come in other pieces (windows of an image): bytes are compared

    def __str__(self) -> str:
        words = (self.model_type, self.attention, self.method, self.precision, f"{self.batch}x{self.seq}")
        return "-".join((*words, f"{self.images}-images") if self.images > 1 else words)


def inputs_of(cell: Whole, model: Any) -> Inputs:
    """One micro-batch of nothing, as the dataloader gives it; of Qwen's networks in real numbers: grids decide shapes."""
    if cell.feed == "grid":
        return grid_inputs(cell, model.config)
    ids, config = torch.zeros(cell.batch, cell.seq, dtype=torch.long), model.config
    vision = getattr(config, "vision_config", config)
    if cell.feed == "text":
        return {"input_ids": ids, "labels": torch.zeros_like(ids)}
    if cell.feed == "audio":
        mel = torch.zeros(cell.batch, config.num_mel_bins, 2 * config.max_source_positions, dtype=cell.dtype)
        return {"input_features": mel, "labels": ids}
    size = vision.image_size[0] if isinstance(vision.image_size, list | tuple) else vision.image_size
    pixels = torch.zeros(cell.batch * cell.images, 3, size, size, dtype=cell.dtype)
    if cell.feed == "image":
        return {"pixel_values": pixels, "labels": torch.zeros(cell.batch, dtype=torch.long)}
    given: Inputs = {"input_ids": ids, "labels": torch.zeros_like(ids), "pixel_values": pixels}
    if cell.model_type == "idefics3":
        given["pixel_values"] = torch.ones(cell.batch, cell.images, 3, size, size, dtype=cell.dtype)
    if cell.model_type == "mistral3":
        given["image_sizes"] = [(size, size)] * (cell.batch * cell.images)  # type: ignore[assignment]
    return given | {"token_type_ids": torch.zeros_like(ids)} if cell.model_type == "gemma3" else given


def grid_inputs(cell: Whole, config: Any) -> Inputs:
    """Square images, one after the other, and as many placeholders in the text as they have merged patches."""
    vision = config.vision_config
    side, square = isqrt(vision.image_patches), vision.spatial_merge_size**2
    count = cell.batch * cell.images
    cut = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    ids = torch.zeros(cell.batch, cell.seq, dtype=torch.long)
    each = vision.image_patches // square
    for image in range(cell.images):
        ids[:, image * (each + 1) : image * (each + 1) + each] = config.image_token_id
    return {
        "input_ids": ids, "labels": torch.zeros_like(ids), "mm_token_type_ids": (ids > 0).int(),
        "pixel_values": torch.zeros(count * vision.image_patches, cut, dtype=cell.dtype),
        "image_grid_thw": torch.tensor([[1, side, side]] * count),
    }  # fmt: skip


@contextlib.contextmanager
def world(cell: Whole) -> Iterator[None]:
    amp = torch.autocast("cpu", torch.bfloat16, enabled=cell.precision == "amp")
    mode = contextlib.nullcontext() if cell.feed == "grid" or cell.model_type in READS else MODE
    with contextlib.ExitStack() as stack:
        if cell.feed == "images and text":  # fake ids cannot be counted
            module = import_module(f"transformers.models.{cell.model_type}.modeling_{cell.model_type}")
            stack.enter_context(unittest.mock.patch.object(module, "torch_compilable_check", lambda *_: None))
        for context in (real_apply(), mode, amp, nothing_padded()):
            stack.enter_context(context)
        yield


def truth_of(cell: Whole, class_name: str) -> Truth:
    """The real network under fake tensors; its outputs are dropped once the loss is there, as Trainer does."""
    with world(cell):
        model = built(cell, class_name)
        inputs = inputs_of(cell, model)
        weights = [*model.parameters(), *model.buffers()]
        return measure(lambda _: model(**inputs, **no_cache(model)).loss, {}, tree_leaves(inputs), weights)


def question_of(cell: Whole, spec: ModelSpec) -> Question:
    conditions = conditions_of(cell)
    kernels = replace(conditions.kernels, padding="right") if spec.family in MASKS_IMAGES else conditions.kernels
    return Question(spec, conditions.precision, kernels, "cpu", "none", cell.method == "full", Loss())


def kept_by_us(cell: Whole, spec: ModelSpec) -> Counter[int]:
    """Every line of every ledger of the network, in bytes."""
    question, found = question_of(cell, spec), Counter[int]()
    conditions = Conditions(question.precision, question.kernels, "cpu", True)
    shared: dict[str, int] = {}
    for run in runs_of(question):
        rows = cell.batch * cell.images if run.part.role == "vision" else cell.batch
        entering = (
            profile(run.part, spec, replace(conditions, needs_input_gradient=False)) if run.first else run.profile
        )
        for made, count in ((run.profile, run.part.count - 1), (entering, 1)):
            for line in made.saved:
                found[evaluate(line.size, rows, cell.seq)] += count
        shared.update({f"{run.part.role} {s.name}": evaluate(s.size, rows, cell.seq) for s in run.profile.shared})
        for entry, of_images in run.entry:
            own = cell.batch * cell.images if of_images else cell.batch
            found.update(evaluate(line.size, own, cell.seq) for line in entry.saved)
    end = head(spec, conditions, question.loss)
    found.update(evaluate(line.size, cell.batch, cell.seq) for line in end.saved)
    found.update(shared.values())
    return Counter({size: count for size, count in found.items() if size > SCALARS})


def moments_of(cell: Whole, spec: ModelSpec) -> tuple[int, int]:
    """The largest moment forwards, and backwards with all gradients of weights that are there by then."""
    question = question_of(cell, spec)
    network = Network(network_bytes(question, cell.batch, cell.seq, cell.images))
    runs, given = runs_of(question), network.bytes.inputs + network.bytes.casts

    def at(direction: str, part: int, piece: int, stage: str) -> int:
        return network.size(Site(direction, part, piece, stage, "made")) - given

    forward, backward = at("loss", END, 0, "during"), at("backward", END, 0, "during")
    gradients = head(
        spec, Conditions(question.precision, question.kernels, "cpu", True), question.loss
    ).weight_gradients
    for number, run in reversed(list(enumerate(runs))):
        for piece in reversed(range(run.part.count)):
            forward = max(forward, *(at("forward", number, piece, stage) for stage in ("before", "during")))
            backward = max(backward, gradients + at("backward", number, piece, "during"))
            gradients += run.profile.weight_gradients
            backward = max(backward, gradients + at("backward", number, piece, "after"))
    return forward, backward


def differences(cell: Whole, tolerance: float = 0.02) -> dict[str, Any]:
    """What differs, empty when everything is equal: ledger tensor by tensor, peaks within ``tolerance``."""
    spec = spec_of(cell)
    truth = truth_of(cell, spec.class_name)
    kept = Counter(size for _, size in truth.saved if size > SCALARS)
    mine = kept_by_us(cell, spec)
    found: dict[str, Any] = {}
    if cell.batch == 1:  # cutting the first label off one row is a view of padded labels
        kept = Counter(size - 8 if size == 8 * (cell.seq + 1) else size for size in kept.elements())
    if cell.pieces:
        total, ours = (sum(size * n for size, n in c.items()) for c in (kept, mine))
        if abs(ours / total - 1) > 0.001:
            found["kept"] = total, ours
    elif kept != mine:
        found["real only"], found["ours only"] = dict(kept - mine), dict(mine - kept)
    for name, measured, predicted in zip(
        ("forward", "backward"), (truth.forward, truth.backward), moments_of(cell, spec), strict=True
    ):
        if abs(predicted / measured - 1) > tolerance:
            found[name] = f"{measured} measured, {predicted} predicted ({predicted / measured - 1:+.2%})"
    return found
