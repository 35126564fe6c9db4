"""Volumes per optimizer step and GPU, as integers, against what papers and sources state.

Psi is Llama-2-7B's 6,738,415,616 parameters on 8 ranks, so that (N - 1) / N of Psi is whole. ``bf16`` moves 2 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from estimators.memory import resolve
from estimators.time.volumes import Message, messages

PSI = 6_738_415_616
ROOT = 2 * 32000 * 4096 + 4096  # embedding, head and final norm: what FSDP's root unit holds
SHARE = PSI // 8 * 7  # (N - 1) / N of Psi elements


def sent(strategy: str, cluster: str = "8xA100", **fields: object) -> int:
    return sum(m.sent_bytes for m in messages(resolve("llama-2-7b", cluster, strategy, **{"stack": "torch", **fields})))


def by_name(strategy: str, cluster: str, **fields: object) -> Mapping[str, Message]:
    return {m.name: m for m in messages(resolve("llama-2-7b", cluster, strategy, **{"stack": "torch", **fields}))}


@pytest.mark.parametrize("k", [1, 4])
def test_ddp_reduces_fp32_gradients_once_a_step(k: int) -> None:
    """torch DistributedDataParallel under autocast: 2 Psi elements of 4 bytes, whatever k, under no_sync."""
    assert sent("ddp", grad_accum=k) == 2 * SHARE * 4


def test_ddp_without_no_sync_reduces_k_times() -> None:
    assert sent("ddp:sync_each_batch=true", grad_accum=4) == 4 * 2 * SHARE * 4


@pytest.mark.parametrize("k", [1, 4])
def test_zero3_moves_3_psi_in_every_micro_step(k: int) -> None:
    """ZeRO paper section 7.2.2: 3 Psi; DeepSpeed bf16 reduces in bf16: 6 Psi bytes, each micro-step."""
    assert sent("zero3", grad_accum=k, stack="deepspeed") == k * 3 * SHARE * 2


def test_fsdp2_moves_8_psi_bytes_less_the_roots_second_gather() -> None:
    """torchtitan: gather bf16 twice, reduce fp32 once; the root unit stays gathered (torch fully_shard docs)."""
    assert sent("fsdp-full-shard") == 2 * SHARE * 2 - ROOT * 2 // 8 * 7 + SHARE * 4


def test_no_sync_reduces_once_but_gathers_every_time() -> None:
    """FSDP paper section 3.3.4: without communication of gradients only the last micro-step reduces."""
    gathers = 2 * SHARE * 2 - ROOT * 2 // 8 * 7
    assert sent("fsdp-full-shard:sync_each_batch=false", grad_accum=4) == 4 * gathers + SHARE * 4
    assert sent("fsdp-full-shard:sync_each_batch=true", grad_accum=4) == 4 * (gathers + SHARE * 4)


def test_shard_grad_op_gathers_once() -> None:
    """torch FSDP docs: parameters are not resharded after forward: Psi gathered, Psi reduced."""
    assert sent("fsdp-shard-grad-op") == SHARE * 2 + SHARE * 4


def test_fsdp1_shard_grad_op_keeps_weights_over_no_sync() -> None:
    once = SHARE * 2 + SHARE * 4
    assert sent("fsdp1-shard-grad-op:sync_each_batch=false", grad_accum=4) == once


@pytest.mark.parametrize(("stage", "k", "reductions"), [(1, 1, 1), (1, 4, 1), (2, 1, 1), (2, 4, 4)])
def test_deepspeed_1_and_2_all_reduce_buckets_and_gather_parameters(stage: int, k: int, reductions: int) -> None:
    """stage_1_and_2.py: ``use_multi_rank_bucket_allreduce`` is on by default: buckets are all-reduced, 2 Psi each."""
    expected = reductions * 2 * SHARE * 2 + SHARE * 2
    assert sent(f"zero{stage}", grad_accum=k, stack="deepspeed") == expected


def test_hybrid_shards_inside_and_all_reduces_a_shard_across() -> None:
    """FSDP paper section 3.2.2: cross-host 2 M (W - 1) / (G W) with M the model's bytes."""
    found = by_name("fsdp-hybrid-shard", "4x8xA100")
    across = found["gradients between replicas"]
    assert (across.ranks, across.stride, across.num_bytes) == (4, 8, PSI * 4 // 8)
    assert across.sent_bytes == 2 * 3 * PSI * 4 // 8 // 4
    assert found["parameters, forward"].ranks == 8


def test_an_integer_reshard_gathers_backward_in_the_small_group() -> None:
    found = by_name("fsdp-full-shard:reshard_after_forward=8", "4x8xA100")
    assert (found["parameters, forward"].ranks, found["parameters, backward"].ranks) == (32, 8)


def test_zero_plus_plus_cuts_what_crosses_nodes_to_a_quarter() -> None:
    """arXiv 2306.10209 table 1: forward 0.5 M, backward 0, gradients 0.25 M of what ZeRO-3 moves as 3 M."""
    plain = by_name("zero3", "4x8xA100", stack="deepspeed")
    small = by_name("zero3:hpz=8,quantized_weights,quantized_gradients", "4x8xA100", stack="deepspeed")
    assert small["parameters, forward"].num_bytes * 2 == plain["parameters, forward"].num_bytes
    assert small["parameters, backward"].ranks == 8
    assert small["gradients"].num_bytes * 4 == plain["gradients"].num_bytes


def test_mics_stays_inside_its_group_and_meets_at_the_boundary() -> None:
    found = by_name("zero3:mics=8", "4x8xA100", stack="deepspeed", grad_accum=4, versions="deepspeed=0.18.0")
    assert {found[name].ranks for name in ("parameters, forward", "parameters, backward", "gradients")} == {8}
    across = found["gradients between replicas"]
    assert (across.times, across.ranks, across.phase) == (1, 4, "step")


def test_adapters_reduce_only_themselves() -> None:
    run = resolve("llama-2-7b", "8xA100", "ddp", method="lora", stack="torch")
    (message,) = messages(run)
    assert message.num_bytes == run.model.num_trainable * 4 or message.num_bytes == run.model.num_trainable * 2


def test_one_gpu_says_nothing() -> None:
    assert messages(resolve("llama-2-7b", "1xA100", "single")) == ()
