"""FSDP1's flat parameters hold packed weights as 16-bit numbers, and blocks wrapped alone have whole gradients."""

from __future__ import annotations

from estimators.engines.sharding import units
from estimators.engines.sharding.flat import elements, flats_of, lay_out, plan_of
from estimators.memory import resolve
from estimators.units import GIB

LORA = {"lora_targets": ("q_proj", "v_proj"), "precision": "bf16", "lora_rank": 8}


def test_a_four_bit_base_shards_its_packed_bytes() -> None:
    def shards(method: str) -> int:
        run = resolve("llama-2-7b", "2xA100-80GB", "fsdp1-full-shard", method=method, **LORA)
        return lay_out(plan_of(run)).all.shard

    whole, packed = shards("lora"), shards("qlora")
    assert whole > 6.2 * GIB
    assert 1.7 * GIB < packed < 2.0 * GIB  # 6.5e9 packed weights at half a byte, embeddings and head at two


def test_elements_of_a_packed_weight() -> None:
    plan = plan_of(resolve("llama-2-7b", "2xA100-80GB", "fsdp1-full-shard", method="qlora", **LORA))
    _, others = units(plan.model, plan.wrap, False)
    packed = next(p for p in others[0].parameters if p.stored_bytes is not None)
    assert elements(packed) * 4 == packed.numel


def test_blocks_wrapped_alone_have_one_flat_parameter_with_a_whole_gradient() -> None:
    """litgpt's FSDP strategy wraps {Block}: adapters and frozen weights share a flat parameter with a whole gradient.

    Measured by litgpt (tutorials/resource-tables.md, 2023-10): Llama-2-7B LoRA on 2 x A100-40GB takes 20.7 GiB, more
    than on one card, where it takes 19.8.
    """
    run = resolve("llama-2-7b", "2xA100-40GB", "fsdp1-full-shard", method="lora", stack="litgpt", grad_accum=64, **LORA)
    plan = plan_of(run)
    _, others = units(plan.model, plan.wrap, False)
    assert len(flats_of(others[0], plan)) == 1
    assert lay_out(plan).all.held > 0.9 * 2 * run.model.num_params
