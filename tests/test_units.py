"""Sizes as people write them, and how they are printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.errors import InputError
from estimators.units import GIB, MAX_BYTES, ceil_div, gib, parse_bytes, power_of_two, readable, round_up


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512GB", 512 * 10**9), ("24GiB", 24 * 2**30), ("4TB", 4 * 10**12), ("1.5 TiB", 3 * 2**39),
        ("80G", 80 * 2**30),
        (" 16 gib ", 16 * 2**30), ("100MB", 10**8), ("7kb", 7000), ("12", 12), (1024, 1024), ("1e9", 10**9),
        (".5k", 512),
    ],
)  # fmt: skip
def test_sizes_are_read_as_written(text: str | int, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "twelve", "-1GB", "12 GB 3", "1.2.3GB", "12 parsecs", "nan", "12,5GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a size; write it like 512GB"):
        parse_bytes(text, "host memory")


@pytest.mark.parametrize("text", ["0", "0GB", "1e30", "2000000TB", "1e999", str(MAX_BYTES)])
def test_what_is_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="host memory: .* is out of range"):
        parse_bytes(text, "host memory")


@given(st.text(max_size=30))
def test_any_text_is_a_size_or_an_input_error(text: str) -> None:
    try:
        assert 0 <= parse_bytes(text) < MAX_BYTES
    except InputError:
        pass


@given(st.integers(1, 2**53))
def test_an_int_is_bytes_already(value: int) -> None:
    assert parse_bytes(value) == value


def test_figures_for_people() -> None:
    assert gib(3 * 2**29) == "1.50"
    assert gib(1234 * GIB, 0) == "1,234"
    assert [readable(n) for n in (0, 1023, 1536, 3 * 2**19, GIB, 2**41)] == [
        "0 B", "1023 B", "1.50 KiB", "1.50 MiB", "1.00 GiB", "2.00 TiB",
    ]  # fmt: skip


@given(st.integers(0, 2**60), st.integers(1, 2**40))
def test_rounding_up(value: int, multiple: int) -> None:
    rounded = round_up(value, multiple)
    assert rounded % multiple == 0 and 0 <= rounded - value < multiple
    assert ceil_div(value, multiple) * multiple == rounded


@given(st.integers(1, 2**60))
def test_power_of_two_is_the_next_one(value: int) -> None:
    power = power_of_two(value)
    assert power & (power - 1) == 0 and value <= power < 2 * value
