"""Names, options and what is refused, each refusal with its reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.errors import IllegalCombination, InputError, UnknownName
from estimators.knobs import KNOBS
from estimators.strategy import ALIASES, DEFAULT_NAMES, ENGINES, OTHER_NAMES, parse_strategy

CONTRACT_NAMES = {
    "single": "torch", "ddp": "ddp", "zero1": "deepspeed", "zero2": "deepspeed", "zero3": "deepspeed",
    "fsdp-full-shard": "fsdp2", "fsdp-shard-grad-op": "fsdp2", "fsdp-hybrid-shard": "fsdp2",
    "fsdp1-full-shard": "fsdp1", "fsdp1-shard-grad-op": "fsdp1", "fsdp1-hybrid-shard": "fsdp1", "fsdp1-no-shard": "fsdp1",
}  # fmt: skip


@pytest.mark.parametrize(("name", "engine"), CONTRACT_NAMES.items())
def test_every_name_of_the_contract(name: str, engine: str) -> None:
    assert parse_strategy(name).engine == engine


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("zero2-offload", "zero2+optimizer@cpu"),
        ("zero3-offload", "zero3+optimizer@cpu+params@cpu"),
        ("zero-infinity", "zero3+optimizer@nvme+params@nvme"),
        ("fsdp-offload", "fsdp-full-shard+params@cpu"),
        ("ZERO3", "zero3"),
        ("fsdp_full_shard", "fsdp-full-shard"),
        ("zero3+params@nvme+optimizer@cpu", "zero3+optimizer@cpu+params@nvme"),
        ("zero3:quantized_weights,hpz=8+optimizer@cpu", "zero3:hpz=8,quantized_weights+optimizer@cpu"),
        ("zero2:reduce_bucket_size=5e7", "zero2:reduce_bucket_size=50000000"),
        ("fsdp-hybrid-shard:shard=8", "fsdp-hybrid-shard:shard=8"),
        ("fsdp1-full-shard:limit_all_gathers=false", "fsdp1-full-shard:limit_all_gathers=false"),
        ("fsdp:wrap=blocks+embedding+params@cpu", "fsdp-full-shard:wrap=blocks+embedding+params@cpu"),
        ("zero3:zero_hpz_partition_size=4", "zero3:hpz=4"),
    ],
)
def test_canonical_form(text: str, canonical: str) -> None:
    assert parse_strategy(text).name == canonical
    assert parse_strategy(canonical).name == canonical


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("zero2+params@cpu", IllegalCombination, "stage 3 only"),
        ("zero1+params@nvme", IllegalCombination, "stage 3 only"),
        ("zero2+optimizer@nvme", IllegalCombination, "stages 1 and 2 keep an offloaded optimizer in host RAM"),
        (
            "fsdp-full-shard+optimizer@cpu",
            IllegalCombination,
            "FSDP moves parameters, gradients and optimizer together",
        ),
        ("fsdp+params@nvme", IllegalCombination, "no NVMe"),
        ("ddp+params@cpu", IllegalCombination, "no offload"),
        ("single+optimizer@cpu", IllegalCombination, "no offload"),
        ("zero0+optimizer@cpu", IllegalCombination, "needs ZeRO"),
        ("ddp:hpz=4", IllegalCombination, "belongs to zero3"),
        ("zero4", UnknownName, "did you mean zero3"),
        ("fsdp-ful-shard", UnknownName, "fsdp-full-shard"),
        ("zero3:hp=3", UnknownName, "did you mean hpz"),
        ("zero3:hpz=x", InputError, "not a whole number"),
        ("zero3:hpz=0", InputError, "outside 1 to"),
        ("zero3:hpz=1.5", InputError, "not a whole number"),
        ("zero3:overlap_comm=7", InputError, "true or false"),
        ("zero3:hpz=4,hpz=8", InputError, "given twice"),
        ("zero3+optimizer@gpu", InputError, "is not an offload"),
        ("zero3+optimizer@cpu+optimizer@nvme", InputError, "two places"),
        ("zero3:reduce_bucket_size=nan", InputError, "whole number"),
        ("z" * 1000, InputError, "too long"),
        ("", UnknownName, "unknown strategy"),
    ],
)
def test_what_is_refused_and_why(text: str, error: type[InputError], reason: str) -> None:
    with pytest.raises(error, match=reason):
        parse_strategy(text)


def test_default_and_other_names_are_legal_and_apart() -> None:
    for name in (*DEFAULT_NAMES, *OTHER_NAMES):
        assert parse_strategy(name).name == name
    assert not set(DEFAULT_NAMES) & set(OTHER_NAMES)


def test_every_alias_parses() -> None:
    for alias, name in ALIASES.items():
        assert parse_strategy(alias) == parse_strategy(name)


def test_every_legal_offload_is_answered_somewhere() -> None:
    """`--all` leaves no legal combination of base and offload out."""
    places = ("", "cpu", "nvme")
    legal = set()
    for base in ENGINES:
        for o in places:
            for p in places:
                text = base + (f"+optimizer@{o}" if o else "") + (f"+params@{p}" if p else "")
                try:
                    legal.add(parse_strategy(text).name)
                except IllegalCombination:
                    continue
    assert legal == {"single", *DEFAULT_NAMES, *OTHER_NAMES}


def test_knob_names_are_unique_for_a_strategy_and_known() -> None:
    for base in ENGINES:
        names = [n for k in KNOBS if base in k.strategies for n in (k.name, *k.aliases)]
        assert len(names) == len(set(names))
    assert {s for k in KNOBS for s in k.strategies} <= set(ENGINES)


@given(st.text(max_size=60))
def test_any_text_parses_or_is_refused_kindly(text: str) -> None:
    try:
        assert parse_strategy(parse_strategy(text).name).name
    except InputError as error:
        assert "\n" not in str(error)
