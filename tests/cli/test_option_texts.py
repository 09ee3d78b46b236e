"""Texts of options become names, numbers, slices and pairs."""

from __future__ import annotations

import pytest

from xloader.cli.option_texts import (
    plain_or_pairs,
    read_counts,
    read_fields,
    read_number,
    read_numbers,
    read_packing,
    read_pad,
    read_size,
    split_names,
    split_pairs,
)
from xloader.errors import OptionError


def test_names_are_separated_by_commas() -> None:
    assert split_names(" t2m, u10,") == ("t2m", "u10")
    assert split_names(None) == ()


def test_a_value_without_a_name_belongs_to_the_name_before_it() -> None:
    pairs = split_pairs("--sel", ["time=1979:2017,level=500, 850", "lat=60:30"])
    assert pairs == {"time": ("1979:2017",), "level": ("500", "850"), "lat": ("60:30",)}


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["500,level=850"], "has a value without a name"),
        (["lat=60", "lat=30"], "names something twice"),
    ],
)
def test_values_without_a_name_and_names_given_twice_are_refused(
    texts: list[str], problem: str
) -> None:
    with pytest.raises(OptionError, match=f"the option --sel {problem}"):
        split_pairs("--sel", texts)


def test_one_plain_value_holds_for_all_dimensions() -> None:
    assert plain_or_pairs("--stride", ["6"], read_size) == 6
    pairs = plain_or_pairs("--stride", ["time=3D", "lat=32"], read_size)
    assert pairs == {"time": "3D", "lat": 32}
    with pytest.raises(OptionError, match="has several values for 'lat'"):
        plain_or_pairs("--stride", ["lat=32,64"], read_size)


@pytest.mark.parametrize(("text", "size"), [("6", 6), ("-6", -6), ("3D", "3D"), ("+6", "+6")])
def test_sizes_are_numbers_of_elements_and_durations_stay_text(text: str, size: int | str) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize(("text", "pad"), [("0", 0.0), ("edge", "edge")])
def test_pads_are_numbers_or_words(text: str, pad: float | str) -> None:
    assert read_pad(text) == pad


def test_whole_labels_are_read_as_whole_numbers() -> None:
    assert (repr(read_number("500")), repr(read_number("-0.25"))) == ("500", "-0.25")
    with pytest.raises(OptionError, match="a label is not a number"):
        read_number("north")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("t2m,u10@time=0:2", (("t2m", "u10"), {"time": slice(0, 2)})),
        ("t2m@time=+10D", (("t2m",), {"time": "+10D"})),
        ("t2m", (("t2m",), {})),
    ],
)
def test_fields_are_variables_and_positions_after_an_at_sign(text: str, field: object) -> None:
    assert read_fields("--inputs", text) == field


@pytest.mark.parametrize("text", ["@time=0", "t2m@", "past=t2m"])
def test_fields_without_variables_or_positions_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="the option --inputs cannot be read"):
        read_fields("--inputs", text)


def test_numbers_are_separated_by_commas() -> None:
    assert read_numbers("--quantiles", "0.01,0.99") == (0.01, 0.99)
    assert read_numbers("--quantiles", None) == ()


def test_chunk_sizes_that_are_not_given_are_none() -> None:
    assert read_counts("--chunks", ["time=24,lat=90"]) == {"time": 24, "lat": 90}
    assert read_counts("--chunks", []) is None


def test_a_packing_is_a_dtype_and_perhaps_a_precision() -> None:
    assert read_packing(["t2m=int16", "u10=int16,0.01"]) == {"t2m": "int16", "u10": ("int16", 0.01)}
