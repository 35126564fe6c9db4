"""Properties of the torch engines' terms, and full-size numbers that were read from the real engine."""

from __future__ import annotations

import pytest

from estimators.engines import hold
from estimators.memory import resolve
from estimators.result import CATEGORIES, PLACES, Term

STRATEGIES = (
    "ddp", "ddp:gradient_as_bucket_view", "fsdp-full-shard", "fsdp-shard-grad-op", "fsdp-hybrid-shard",
    "fsdp-full-shard+params@cpu", "fsdp1-full-shard", "fsdp1-shard-grad-op", "fsdp1-hybrid-shard", "fsdp1-no-shard",
    "fsdp1-full-shard+params@cpu",
)  # fmt: skip
INSTANTS = {"load", "forward", "backward", "reduce", "step", "save"}
WORKLOADS = (
    {"precision": "bf16-mixed"},
    {"precision": "bf16", "grad_accum": 4},
    {"precision": "fp32"},
    {"method": "lora", "precision": "bf16-mixed"},
)


def held(strategy: str, cluster: str = "8xH100", device: str = "cuda", **fields: object) -> dict[str, tuple[Term, ...]]:
    return hold(resolve("llama-8b", cluster, strategy, device, **{"stack": "torch", **fields}))


def total(terms: tuple[Term, ...], place: str = "gpu") -> int:
    return sum(term.bytes for term in terms if term.place == place)


def named(terms: tuple[Term, ...]) -> dict[str, int]:
    return {term.name: term.bytes for term in terms if term.place == "gpu"}


@pytest.mark.parametrize("fields", WORKLOADS, ids=lambda f: "-".join(map(str, f.values())))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_terms_are_well_formed(strategy: str, fields: dict[str, object]) -> None:
    found = held(strategy, **fields)
    assert INSTANTS - {"loss"} <= set(found)
    for terms in found.values():
        assert all(t.bytes > 0 and t.category in CATEGORIES and t.place in PLACES and t.formula for t in terms)
        assert len({(t.name, t.place) for t in terms}) == len(terms)


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if s.startswith("fsdp")])
def test_more_ranks_never_hold_more_between_steps(strategy: str) -> None:
    sizes = [total(held(strategy, f"{nodes}x8xH100")["step"]) for nodes in (1, 2, 4, 8)]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_accumulation_never_needs_less(strategy: str) -> None:
    once, more = held(strategy), held(strategy, grad_accum=2)
    assert all(total(more[name]) >= total(once[name]) for name in ("forward", "backward", "step"))


def test_offload_leaves_working_buffers_only() -> None:
    there, here = held("fsdp-full-shard+params@cpu"), held("fsdp-full-shard")
    assert total(there["step"]) < 1_000_000  # model buffers
    assert total(there["forward"]) < total(here["forward"])
    assert total(there["step"], "host") >= 8 * total(here["step"])  # a node's ranks, pinned blocks rounded up


# Llama-3.1-8B on 8 ranks, fp32 parameters, bf16 compute, fp32 reduction: the real engine under fake tensors and a fake
# process group (torch 2.13), read with torch.distributed._tools.fsdp2_mem_tracker.
FULL_SIZE = {
    ("forward", "parameter shards"): 4_015_130_624,
    ("forward", "gathered root unit"): 2_101_354_496,
    ("forward", "gathered units"): 436_224_000,
    ("backward", "all-gather buffers"): 436_224_000,
    ("step", "sharded gradients"): 4_015_130_624,
    ("step", "optimizer states"): 8_030_262_412 - 291 * 4,  # that run's counters lay on the one device it had
    ("reduce", "root gradients"): 2_101_354_496,
    ("reduce", "reduce-scatter input"): 4_202_708_992,
    ("reduce", "sharded gradients"): 3_489_792_000,
}


@pytest.mark.parametrize(("instant", "name"), FULL_SIZE)
def test_full_size_fsdp2(instant: str, name: str) -> None:
    found = named(held("fsdp-full-shard", precision="bf16-mixed")[instant])
    assert found[name] == FULL_SIZE[instant, name]


def test_full_size_70b_on_64_ranks() -> None:
    """Sharded parameters of Llama-70B, read the same way."""
    found = hold(resolve("llama-70b", "8x8xH100", "fsdp-full-shard", stack="torch", precision="bf16-mixed"))
    assert named(found["step"])["parameter shards"] == 4_409_606_656
