"""Properties of every estimate: terms sum, nothing is negative, more never needs less."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from estimators import IllegalCombination, InputError, estimate, estimate_all, parse_cluster
from estimators.memory import Estimate
from estimators.result import CATEGORIES, INSTANTS, PLACES
from estimators.strategy import DEFAULT_NAMES, OTHER_NAMES

MODELS = (
    "llama-8b",
    "gpt2",
    "qwen2.5-0.5b",
    "mixtral-8x7b",
    "gemma-2-9b",
    "t5-3b",
    "qwen2-vl-7b",
    "bert-base",
    "vit-base",
)
NAMES = (*DEFAULT_NAMES, *OTHER_NAMES)
PERSISTENT = ("params", "gradients", "master", "optimizer")

questions = st.fixed_dictionaries(
    {
        "model": st.sampled_from(MODELS),
        "strategy": st.sampled_from(NAMES),
        "nodes": st.sampled_from((1, 2)),
        "gpus": st.sampled_from((1, 2, 3, 4, 8)),
        "method": st.sampled_from(("full", "lora", "qlora", "freeze")),
        "precision": st.sampled_from(("bf16-mixed", "bf16", "fp32", "fp16-mixed")),
        "checkpointing": st.sampled_from(("none", "full", "selective", "every-2", "offload")),
        "stack": st.sampled_from(("trainer", "torch", "deepspeed", "accelerate", "trl")),
        "micro_batch": st.integers(1, 8),
        "seq_len": st.integers(16, 8192),
        "grad_accum": st.sampled_from((1, 2)),
    }
)


def asked(question: dict, **changes: object) -> Estimate | None:
    """The estimate, or None where the combination is refused."""
    fields = {**question, **changes}
    model, strategy = fields.pop("model"), fields.pop("strategy")
    cluster = f"{fields.pop('nodes')}x{fields.pop('gpus')}xH100"
    try:
        return estimate(model, cluster, strategy, **fields)
    except InputError:
        return None


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(questions)
def test_terms_are_whole_positive_and_sum_to_the_instant(question: dict) -> None:
    found = asked(question)
    if found is None:
        return
    assert [i.name for i in found.instants] == [n for n in INSTANTS if n in {i.name for i in found.instants}]
    for instant in found.instants:
        for term in instant.terms:
            assert isinstance(term.bytes, int) and term.formula and term.name
            assert term.category in CATEGORIES and term.place in PLACES
            assert term.bytes > 0, term
        for place in PLACES:
            assert sum(instant.by_category(place).values()) == instant.total(place) >= 0
    assert found.peak.gpu_bytes == found.gpu.allocated.expected
    assert all(i.gpu_bytes <= found.peak.gpu_bytes for i in found.instants if i.name != "save")
    assert found.gpu.process.low <= found.gpu.process.expected <= found.gpu.process.high
    assert found.verdict in ("fits", "tight", "no", "unknown")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(questions, st.sampled_from(("micro_batch", "seq_len")))
def test_more_tokens_never_need_less(question: dict, field: str) -> None:
    small, large = asked(question), asked(question, **{field: question[field] + 1})
    if small and large:
        assert large.peak.gpu_bytes >= small.peak.gpu_bytes


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(questions)
def test_more_shards_never_hold_more(question: dict) -> None:
    """Parameters, gradients, masters and states after the step: twice the nodes never need more on a GPU."""
    few, many = asked(question, nodes=1), asked(question, nodes=2)
    if few and many and question["strategy"] != "single":
        for instant in ("step",):
            before, after = (sum(e[instant].by_category().get(c, 0) for c in PERSISTENT) for e in (few, many))
            assert after <= before * 1.02 + 4096  # whole-parameter pieces and padding move with the ranks


@pytest.mark.parametrize("name", NAMES)
def test_layers_add_up(name: str) -> None:
    def depth(layers: int) -> int:
        config = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": layers,
                  "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1024}  # fmt: skip
        return estimate(config, "2x4xA100-80GB", name).peak.gpu_bytes

    assert depth(2) <= depth(4) <= depth(8)


def test_default_strategies_of_one_and_of_many_gpus() -> None:
    one, _ = estimate_all("gpt2", "A10")
    assert [e.strategy for e in one] == ["single"]
    many, left_out = estimate_all("gpt2", "4xA10")
    assert {e.strategy for e in many} | set(left_out) == set(DEFAULT_NAMES)


def test_what_ranks_cannot_do_is_refused() -> None:
    with pytest.raises(IllegalCombination, match="does not divide"):
        estimate("gpt2", "4xA10", "zero3:hpz=3")
    with pytest.raises(IllegalCombination, match="single is one GPU"):
        estimate("gpt2", "4xA10", "single")


def test_host_and_nvme_that_were_given_are_judged() -> None:
    small = parse_cluster("8xH100", host_memory="64GB")
    found = estimate("llama-8b", small, "zero3-offload")
    assert found.verdict == "no" and found.reason == "host RAM"
    assert estimate("llama-8b", parse_cluster("8xH100", nvme="1GB"), "zero-infinity").reason == "NVMe"
    assert "host RAM is not judged" in " ".join(estimate("llama-8b", "8xH100", "zero3-offload").notes)


def test_an_instant_that_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match="no such instant"):
        estimate("gpt2", "A10", "single")["lunch"]
