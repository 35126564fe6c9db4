"""Whole networks equal the real ones from data to loss: every kept tensor, and the largest moments of both ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from tests.activations.dense_families import EAGER_ONLY, FAMILIES
from tests.activations.other_towers import ENCODERS, MULTIMODAL, PAIRS, QWEN, T5, TOWERS
from tests.activations.whole import Whole, differences

# On CPU sdpa takes its flash kernel only without dropout, and without a mask that a gradient flows to (T5's bias).
QUIET = {"attention_probs_dropout_prob": 0.0, "attention_dropout": 0.0}
START = {"decoder_start_token_id": 0, "pad_token_id": 0}
SIGHT = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7}
SIZES = ((2, 128), (3, 96))
# T5's biases and masks live until its stack returns, which is beyond its last norm: the peak of a tiny vocabulary.
# Under autocast one moment of Whisper's forward holds 118 kB more than ours, for a reason not found.
TOLERANCE = {"t5": 0.035, "mt5": 0.035, "whisper-amp": 0.035}

DECODERS = {
    "llama": FAMILIES["llama"], "gpt2": FAMILIES["gpt2"] | {"embd_pdrop": 0.1},
    "gpt_bigcode": FAMILIES["gpt_bigcode"] | {"embd_pdrop": 0.1}, "opt": FAMILIES["opt"],
    "gpt_neo": FAMILIES["gpt_neo"] | {"embed_dropout": 0.1}, "gptj": FAMILIES["gptj"] | {"embd_pdrop": 0.1},
    "codegen": FAMILIES["codegen"] | {"embd_pdrop": 0.1}, "bloom": FAMILIES["bloom"],
}  # fmt: skip
READERS = {"bert": ENCODERS["bert"][1], "roberta": ENCODERS["roberta"][1] | {"pad_token_id": 1},
           "distilbert": ENCODERS["distilbert"][1], "electra": ENCODERS["electra"][1],
           "modernbert": ENCODERS["modernbert"][1]}  # fmt: skip
EYES = {
    # the layer behind the one whose features are read is kept in part, and only while the outputs live
    "llava": MULTIMODAL["llava"][1] | {"vision_feature_layer": -1},
    "gemma3": MULTIMODAL["gemma3"][1] | {"mm_tokens_per_image": 16, "image_token_id": 5, "vision_config":
              MULTIMODAL["gemma3"][1]["vision_config"] | {"vision_use_head": False}},
    "paligemma": MULTIMODAL["paligemma"][1] | {"image_token_id": 5, "projection_dim": 64, "vision_config":
                 MULTIMODAL["paligemma"][1]["vision_config"] | {"vision_use_head": False, "projection_dim": 64}},
    "internvl": MULTIMODAL["internvl"][1] | {"image_token_id": 5},
    "idefics3": MULTIMODAL["idefics3"][1] | {"image_token_id": 5},
}  # fmt: skip
PIXTRAL = MULTIMODAL["mistral3"][1] | {"image_token_id": 5}


def cells() -> Iterator[Whole]:
    for family, config in DECODERS.items():
        kernels = ("eager",) if family in EAGER_ONLY else ("eager", "sdpa")
        yield from sizes(family, config, kernels)
    for family, config in READERS.items():
        yield from sizes(family, config, ("eager", "sdpa"), methods=True)
    for family, config in (("t5", T5 | START), ("mt5", PAIRS["mt5"][1] | START)):
        yield from sizes(family, config, ("eager",), methods=True)
        yield Whole(family, config=config | {"dropout_rate": 0.0}, method="lora", batch=3, seq=96)
    yield from sizes("whisper", PAIRS["whisper"][1], ("eager", "sdpa"), feed="audio", methods=True)
    for family in ("bart", "mbart", "pegasus"):
        yield from sizes(family, PAIRS[family][1], ("eager", "sdpa"), methods=family == "bart")
    for family in ("vit", "deit", "dinov2"):
        yield from sizes(family, TOWERS[family][1] | {"num_labels": 7}, ("eager", "sdpa"), feed="image", methods=True)
    for family, config in EYES.items():
        yield from sizes(family, config, ("eager", "sdpa"), feed="images and text")
        yield Whole(family, config=config, feed="images and text", batch=2, seq=128, images=2)
    for attention, seq in (("eager", 128), ("sdpa", 128), ("sdpa", 96)):  # all images lie in one sequence
        yield Whole("mistral3", config=PIXTRAL, feed="images and text", attention=attention, batch=1, seq=seq)
    for family in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl"):  # one image: several keep the same bytes in more tensors
        for seq in (128, 96):
            yield Whole(family, config=QWEN[family][1] | SIGHT, feed="grid", batch=1, seq=seq, pieces="5" in family)
    yield Whole("qwen2_vl", config=QWEN["qwen2_vl"][1] | SIGHT, feed="grid", seq=128, images=2,
                pieces=True)  # fmt: skip
    for family, feed in (("whisper", "audio"), ("vit", "image")):
        yield Whole(family, config=(PAIRS | TOWERS)[family][1] | QUIET, feed=feed, precision="amp")


def plain_embeddings() -> Iterator[Whole]:
    """Families whose root is described by nothing but words, a norm and a head."""
    for family, config in FAMILIES.items():
        if family not in DECODERS:
            yield Whole(family, config=config, attention="eager" if family in EAGER_ONLY else "sdpa")


def sizes(
    family: str, config: dict[str, Any], kernels: tuple[str, ...], feed: str = "text", methods: bool = False
) -> Iterator[Whole]:
    for attention in kernels:
        plain = config | (QUIET if attention == "sdpa" and feed != "images and text" else {})
        for batch, seq in SIZES:
            yield Whole(family, config=plain, feed=feed, attention=attention, batch=batch, seq=seq)
    if methods:
        yield Whole(family, config=plain, feed=feed, attention=attention, method="lora", batch=3, seq=96)


@pytest.mark.parametrize("cell", [*cells(), *plain_embeddings()], ids=str)
def test_a_network_equals_the_real_one(cell: Whole) -> None:
    tolerance = TOLERANCE.get(f"{cell.model_type}-{cell.precision}", TOLERANCE.get(cell.model_type, 0.02))
    assert differences(cell, tolerance) == {}
