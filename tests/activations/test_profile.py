"""Profiles of every dense family in the catalogue, numbers measured on Llama 3 8B, and what must hold for any block."""

from __future__ import annotations

import pytest

from estimators.activations.attention import Kernels
from estimators.activations.blocks import BY_RELATIVE
from estimators.activations.builder import Precision
from estimators.activations.checkpointing import checkpointed
from estimators.activations.head import head, with_rows
from estimators.activations.losses import Loss
from estimators.activations.profile import Conditions, profile
from estimators.activations.tape import evaluate
from estimators.errors import NotModelled
from estimators.model.families import build
from estimators.model.spec import ModelSpec, Part

LLAMA_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
SBH = 2048 * 4096
HUB = [
    {"model_type": "baichuan"}, {"model_type": "chatglm", "multi_query_attention": True, "multi_query_group_num": 2},
    {"model_type": "internlm"}, {"model_type": "internlm2"}, {"model_type": "minicpm"}, {"model_type": "qwen"},
    {"model_type": "internlm3"}, {"model_type": "exaone", "num_layers": 2}, {"model_type": "iquestcoder"},
]  # fmt: skip


@pytest.fixture(scope="module")
def llama() -> ModelSpec:
    return build(LLAMA_8B)


@pytest.mark.parametrize(
    ("precision", "attention", "saved"),
    [  # measured on transformers 5.24 at 1 x 2048 tokens: unique storages saved for backward, parameters left out
        (Precision("bf16"), "sdpa", 411_320_320),
        (Precision("bf16"), "eager", 1_241_530_368),
        (Precision("fp32"), "sdpa", 755_253_248),
        (Precision("fp32", "bf16", "fp32"), "sdpa", 931_414_016),
        (Precision("fp32", "bf16", "fp32"), "eager", 1_761_624_064),
    ],
)
def test_saved_bytes_of_llama_8b(llama: ModelSpec, precision: Precision, attention: str, saved: int) -> None:
    made = profile(llama.blocks[0], llama, Conditions(precision, Kernels(attention), "cpu"))
    assert made.saved_bytes(1, 2048) == saved


@pytest.mark.parametrize(("precision", "kept"), [(Precision("bf16"), 2), (Precision("fp32", "bf16", "fp32"), 4)])
def test_checkpointing_keeps_the_input(llama: ModelSpec, precision: Precision, kept: int) -> None:
    made = profile(llama.blocks[0], llama, Conditions(precision))
    assert evaluate(checkpointed(made, "full")[0].kept, 1, 2048) == kept * SBH


def test_loss_of_llama_8b(llama: ModelSpec) -> None:
    """Ten bytes a logit at the peak of the forward, four kept, eight more in backward (fp32 gradients)."""
    made, logits = head(llama), 2048 * 128256
    forward = made.peak(made.forward, 1, 2048)
    assert 10 * logits < forward < 10 * logits + 20 * SBH
    assert made.saved_bytes(1, 2048) == pytest.approx(1_117_822_988, abs=50_000)
    assert made.peak(made.backward, 1, 2048) == pytest.approx(8 * logits, abs=20_000)  # the labels are gone by then


@pytest.mark.parametrize("loss", [Loss("chunked"), Loss("fused"), Loss(kernel="in-place"), Loss(kernel="compiled")])
def test_other_losses_need_less(llama: ModelSpec, loss: Loss) -> None:
    plain, other = head(llama), head(llama, None, with_rows(llama, loss, 8192))
    whole = [p.saved_bytes(1, 8192) + p.peak(p.backward, 1, 8192) for p in (other, plain)]
    assert whole[0] < whole[1]
    assert other.peak(other.forward, 1, 8192) < plain.peak(plain.forward, 1, 8192)


def test_ways_of_checkpointing(llama: ModelSpec) -> None:
    made = profile(llama.blocks[0], llama)
    kept = {how: [evaluate(k.kept, 1, 2048) for k in checkpointed(made, how)]
            for how in ("none", "full", "selective", "every-2", "offload")}  # fmt: skip
    assert kept["offload"] == [0] and kept["full"] == [2 * SBH]
    assert kept["every-2"] == [*kept["full"], *kept["none"]]
    assert kept["full"] < kept["selective"] < kept["none"]
    assert evaluate(checkpointed(made, "offload")[0].host, 1, 2048) == 2 * SBH


def test_fused_kernels_keep_less(llama: ModelSpec) -> None:
    plain, fused = (profile(llama.blocks[0], llama, Conditions(kernels=Kernels(fused=f))) for f in (False, True))
    assert fused.saved_bytes(1, 2048) < 0.75 * plain.saved_bytes(1, 2048)


@pytest.mark.parametrize("config", HUB, ids=lambda c: str(c["model_type"]))
def test_hub_families_have_a_relative(config: dict[str, object]) -> None:
    sizes = {"hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 960,
             "kv_channels": 128, "intermediate_size": 1024}  # fmt: skip
    if config["model_type"] in ("internlm2", "minicpm", "internlm3", "iquestcoder", "exaone"):
        sizes["num_key_value_heads"] = 2
    model = build({**sizes, **config})
    made = profile(model.blocks[0], model)
    assert made.saved_bytes(2, 64) > 0 and made.weight_gradients == 2 * model.blocks[0].numel
    assert head(model).weight_gradients > 0
    assert BY_RELATIVE


def test_size_grows_with_batch_and_sequence(llama: ModelSpec) -> None:
    made = profile(llama.blocks[0], llama)
    values = [made.saved_bytes(*s) for s in ((1, 512), (1, 1024), (2, 1024), (4, 1024))]
    assert values == sorted(set(values))


def test_unknown_block_is_refused(llama: ModelSpec) -> None:
    part = Part(llama.blocks[0].parameters, 1, "layers.{}", class_name="NobodysBlock")
    with pytest.raises(NotModelled, match="NobodysBlock is not described"):
        profile(part, llama)
