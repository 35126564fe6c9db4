"""FLOPs and shapes against published counts and hand arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from estimators.memory import resolve
from estimators.model import resolve_model
from estimators.time.flops import attended, attention_forward, micro_flops
from estimators.time.optimizer_step import muon_flops, orthogonalisation
from estimators.time.shapes import token_work, tower_config
from estimators.time.towers import streams


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


def test_a_vision_model_alone_takes_its_own_patches() -> None:
    """ViT-B/16 at 224: 17.6 GMACs an image (timm's results; arXiv 2010.11929), whatever the sequence is said to be."""
    for tokens in (512, 2048):
        run = resolve("ViT-base-patch16-224", "8xA100-80GB", "ddp", seq_len=tokens, micro_batch=4)
        found = micro_flops(run)
        assert (found.forward + found.attention_forward) / 4 == pytest.approx(2 * 17.6e9, rel=0.02)
    assert not any(causal for *_, causal in token_work(run.model).pairs)


def counted(module: Any, *arguments: Any, **named: Any) -> int:
    """FLOPs of a real forward, by torch's counter."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        module(*arguments, **named)
    return int(counter.get_total_flops())


@pytest.mark.parametrize("name", ["llava-1.5-7b", "whisper-small", "qwen2-vl-7b"])
def test_towers_are_counted_at_images_of_the_batch(name: str) -> None:
    """The real tower on the meta device; the projector and the patch embedding, which are no blocks, are the rest."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    run = resolve(name, "8xA100-80GB", "ddp", seq_len=1024, micro_batch=2)
    text, tower = streams(run).streams
    ours = 2 * tower.length * (2 * tower.work.products + attention_forward(tower.work, tower.length, False))
    config = {k: v for k, v in tower_config(run.model, run.model.blocks[0]).items() if k != "model_type"}
    with torch.device("meta"):
        if name.startswith("llava"):
            module = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**config, attn_implementation="eager"))
            real = counted(module, torch.empty(2, 3, 336, 336))
        elif name.startswith("whisper"):
            own = transformers.WhisperConfig(**config, attn_implementation="eager")
            module = transformers.models.whisper.modeling_whisper.WhisperEncoder(own)
            real = counted(module, torch.empty(2, own.num_mel_bins, 3000))
        else:
            kind = transformers.models.qwen2_vl
            own = kind.configuration_qwen2_vl.Qwen2VLVisionConfig(**config, attn_implementation="eager")
            block = kind.modeling_qwen2_vl.Qwen2VLVisionBlock(own)
            ends = torch.tensor([0, 1024, 2048], dtype=torch.int32, device="cpu")
            rotary = (torch.empty(2048, 80), torch.empty(2048, 80))
            real = own.depth * counted(block, torch.empty(2048, 1280), cu_seqlens=ends, position_embeddings=rotary)
    assert ours == pytest.approx(real, rel=0.04)
    if not name.startswith("whisper"):
        three = resolve(name, "8xA100-80GB", "ddp", seq_len=1024, micro_batch=2, images=3)
        one = 2 * tower.length * 2 * tower.work.products
        assert micro_flops(three).forward == pytest.approx(micro_flops(run).forward + 2 * one)
    assert micro_flops(run).forward > 2 * text.length * 2 * text.work.products


def test_a_frozen_tower_in_front_has_no_backward() -> None:
    whole = resolve("llava-1.5-7b", "8xA100-80GB", "ddp", seq_len=1024, checkpointing="none")
    frozen = resolve("llava-1.5-7b", "8xA100-80GB", "ddp", seq_len=1024, checkpointing="none",
                     method="freeze", freeze="vision_tower")  # fmt: skip
    tower = streams(whole).streams[1]
    gone = micro_flops(whole).backward - micro_flops(frozen).backward
    assert gone == 2 * 2 * tower.length * tower.work.products


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (64, 256), (256, 96)])
def test_muon_does_what_torch_and_deepspeed_do(rows: int, columns: int) -> None:
    """Their own functions, counted by torch on the meta device."""
    torch = pytest.importorskip("torch")
    from torch.optim._muon import _zeropower_via_newtonschulz

    with torch.device("meta"):
        made = counted(_zeropower_via_newtonschulz, torch.empty(rows, columns), (3.4445, -4.775, 2.0315), 5, 1e-7)
        assert orthogonalisation(rows, columns) == made
        theirs = pytest.importorskip("deepspeed.runtime.zero.muon.original_muon").zeropower_via_gram_newtonschulz
        plain = getattr(theirs, "__wrapped__", None) or getattr(theirs, "_torchdynamo_orig_callable", theirs)
        assert orthogonalisation(rows, columns, gram=True) == counted(plain, torch.empty(rows, columns), steps=5)


def test_muon_overhead_is_what_its_author_states() -> None:
    """Keller Jordan, "Muon": at most T m / B of the FLOPs of a step, m the width, B its tokens; equal where square."""
    run = resolve("llama-8b", "8xH100", "ddp", stack="torch", optimizer="muon", seq_len=8192)
    blocks = [p.shape for part in run.model.blocks for p in part.parameters if len(p.shape) == 2]
    step = 6 * 8192 * sum(rows * columns for rows, columns in blocks) * 32
    assert 0.6 * 5 * 4096 / 8192 <= muon_flops(run) / step <= 5 * 4096 / 8192
    spread = resolve("llama-8b", "8xH100", "zero2", stack="deepspeed", optimizer="muon", seq_len=8192)
    assert muon_flops(spread) < muon_flops(run) / 8
    assert muon_flops(resolve("llama-8b", "8xH100", "ddp")) == 0
