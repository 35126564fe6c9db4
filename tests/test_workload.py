"""Workload fields: the contract's values and aliases, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.errors import IllegalCombination, InputError, UnknownName
from estimators.workload import FIELDS, OPTIMIZERS, PRECISIONS, STACKS, workload


def test_defaults_of_the_contract() -> None:
    made = workload()
    assert (made.method, made.precision, made.seq_len, made.micro_batch, made.grad_accum) == (
        "full",
        "bf16-mixed",
        2048,
        1,
        1,
    )
    assert (made.checkpointing, made.attention, made.loss, made.stack, made.lora_rank) == (
        "full",
        "sdpa",
        "plain",
        "trainer",
        16,
    )
    assert made.lora_targets == "all-linear" and made.quant == "nf4-double" and made.padding == "none"
    assert made.optimizer is made.param_dtype is made.state_dtype is made.reduce_dtype is None


def test_equal_workloads_are_the_same_object() -> None:
    assert workload(seq_len=4096) is workload(max_seq_length=4096)
    assert workload(per_device_train_batch_size="4", gradient_accumulation_steps=2) is workload(
        micro_batch=4, grad_accum=2
    )


@pytest.mark.parametrize("field", ["optimizer", "precision", "stack"])
def test_every_word_of_the_contract(field: str) -> None:
    for word in {"optimizer": OPTIMIZERS, "precision": PRECISIONS, "stack": STACKS}[field]:
        assert getattr(workload(**{field: word}), field) == word


@pytest.mark.parametrize(
    ("fields", "error", "reason"),
    [
        ({"seq_len": 0}, InputError, "out of range"),
        ({"seq_len": -5}, InputError, "out of range"),
        ({"seq_len": "many"}, InputError, "not a whole number"),
        ({"seq_len": 2.5}, InputError, "not a whole number"),
        ({"seq_len": True}, InputError, "not a whole number"),
        ({"seq_len": 10**12}, InputError, "out of range"),
        ({"micro_batch": "1e3"}, InputError, "not a whole number"),
        ({"precision": "bf17"}, InputError, "not one of bf16-mixed"),
        ({"precision": 16}, InputError, "not one of"),
        ({"compile": "yes"}, InputError, "not true or false"),
        ({"optimiser": "adamw"}, UnknownName, "did you mean optimizer"),
        ({"seq_len": 1, "max_seq_length": 1}, InputError, "given twice"),
        ({"lora_rank": 8}, IllegalCombination, "needs an adapter"),
        ({"quant": "nf4"}, IllegalCombination, "method qlora"),
        ({"freeze": ["model"]}, IllegalCombination, "method freeze"),
        ({"method": "lora", "lora_targets": 5}, InputError, "not a list of names"),
        ({"method": "lora", "lora_targets": [[1]]}, InputError, "not a list of names"),
        ({"versions": "deepspeed"}, InputError, "is not a version"),
        ({"versions": {"torch": 2.5}}, InputError, "is not a version"),
    ],
)
def test_what_is_refused_and_why(fields: dict, error: type[InputError], reason: str) -> None:
    with pytest.raises(error, match=reason):
        workload(**fields)


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.text(max_size=5), max_size=3),
)


@given(st.dictionaries(st.sampled_from(FIELDS), anything, max_size=4))
def test_any_values_are_taken_or_refused_kindly(fields: dict) -> None:
    try:
        workload(**fields)
    except InputError as error:
        assert "\n" not in str(error)
