"""FLOPs and shapes against published counts and hand arithmetic."""

from __future__ import annotations

import pytest

from estimators.memory import resolve
from estimators.model import resolve_model
from estimators.time.flops import attended, micro_flops
from estimators.time.shapes import token_work


def flops(model: str, **fields: object) -> tuple[float, float, float]:
    """(model, hardware, executed) FLOPs per token."""
    run = resolve(model, "8xH100", "fsdp-full-shard", **fields)
    found = micro_flops(run)
    tokens = run.workload.micro_batch * run.workload.seq_len
    return found.model / tokens, found.hardware / tokens, found.executed / tokens


def test_products_are_the_matrices_that_multiply() -> None:
    block = 4 * 4096 * 4096 + 3 * 4096 * 11008
    assert token_work(resolve_model("llama-2-7b")).products == 32 * block + 32000 * 4096 == 6_607_077_376


def test_a_tied_head_multiplies_although_it_stores_nothing() -> None:
    work = token_work(resolve_model("gpt2-xl"))
    assert work.head == 50257 * 1600 and work.vocabulary == 50257
    assert work.products == 48 * 12 * 1600 * 1600 + 50257 * 1600


def test_full_training_is_6_and_8_times_the_products() -> None:
    """PaLM's convention: 6 P + 12 L h s per token; with checkpointing 8 P without the head's forward."""
    work = token_work(resolve_model("llama-2-7b"))
    model, hardware, _ = flops("llama-2-7b", seq_len=4096, checkpointing="none")
    assert model == hardware == 6 * work.products + 12 * 32 * 4096 * 4096
    _, again, _ = flops("llama-2-7b", seq_len=4096, checkpointing="full")
    assert again == hardware + 2 * work.blocks + 4 * 32 * 4096 * 4096


def test_torchtitan_mfu_of_a_published_row() -> None:
    """torchtitan docs/performance.md: 13B on 64 A100, 2162 tokens/s and GPU, MFU 61.1 % of 312 TFLOPS."""
    model, _, _ = flops("llama-2-13b", seq_len=4096, checkpointing="none")
    assert model * 2162 / 312e12 == pytest.approx(0.611, abs=0.012)


def test_frozen_weights_pass_gradients_on_but_get_none() -> None:
    work = token_work(resolve_model("llama-2-7b"))
    _, _, full = flops("llama-2-7b", checkpointing="none", seq_len=128)
    model, _, _ = flops("llama-2-7b", method="lora", checkpointing="none", seq_len=128)
    assert model / work.products == pytest.approx(4.0, rel=0.03)
    assert full / work.products == pytest.approx(6.0, rel=0.03)


def test_only_active_experts_count() -> None:
    work = token_work(resolve_model("mixtral-8x7b"))
    assert work.expert_products == 32 * 3 * 4096 * 14336 * 2
    assert work.products == pytest.approx(12.6e9, rel=0.03)  # the published 12.9B active, less the embedding


def test_deepseek_v3_has_37_billion_active() -> None:
    assert token_work(resolve_model("deepseek-v3")).products == pytest.approx(36.6e9, rel=0.03)


@pytest.mark.parametrize(
    ("seq_len", "window", "causal", "keys"),
    [(1, 0, True, 1), (4096, 0, True, 2048.5), (4096, 4096, True, 2048.5), (100, 0, False, 100), (4, 2, True, 1.75)],
)
def test_keys_that_a_query_meets(seq_len: int, window: int, causal: bool, keys: float) -> None:
    """(4, 2): 1 + 2 + 2 + 2 over 4."""
    assert attended(seq_len, window, causal) == keys


def test_eager_attention_computes_the_whole_square() -> None:
    flash, eager = flops("llama-2-7b", attention="flash")[2], flops("llama-2-7b", attention="eager")[2]
    assert eager > flash


def test_a_vision_model_alone_takes_its_sequence_as_patches() -> None:
    work = token_work(resolve_model("ViT-base-patch16-224"))
    assert work.products >= 12 * 12 * 768 * 768 and not work.notes
    assert not any(causal for *_, causal in work.pairs)


def test_towers_without_a_count_of_images_are_left_out_and_named() -> None:
    work = token_work(resolve_model("qwen2-vl-7b"))
    assert any("images" in note for note in work.notes)
    assert work.products < resolve_model("qwen2-vl-7b").num_params
