"""Texts of options become names, numbers, slices and pairs."""

from __future__ import annotations

import pytest

from xloader.cli.option_texts import (
    read_label,
    read_number,
    read_offset,
    read_packing,
    read_pairs,
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
    for texts, problem in (
        (["500,level=850"], "has a value without a name"),
        (["lat=60", "lat=30"], "names something twice"),
    ):
        with pytest.raises(OptionError, match=f"the option --sel {problem}"):
            split_pairs("--sel", texts)


def test_one_plain_value_holds_for_all_dimensions() -> None:
    assert read_pairs("--stride", ["6"]) == 6
    assert read_pairs("--stride", ["time=3D", "lat=32"]) == {"time": "3D", "lat": 32}
    with pytest.raises(OptionError, match="has a value without a name"):
        read_pairs("--isel", ["6"])


@pytest.mark.parametrize(
    ("text", "value"),
    [("6", 6), ("-6", -6), ("-0.25", -0.25), ("3D", "3D"), ("+6", 6), ("edge", "edge")],
)
def test_numbers_are_read_and_durations_and_words_stay_text(text: str, value: object) -> None:
    assert repr(read_number(text)) == repr(value)


def test_offsets_keep_their_sign_and_labels_are_numbers() -> None:
    assert (read_offset("+6"), read_offset("6")) == ("+6", 6)
    assert (repr(read_label("+30")), repr(read_label("-0.5"))) == ("30", "-0.5")
    for text in ("60N", "700hPa"):
        with pytest.raises(OptionError, match="a label is not a number"):
            read_label(text)


@pytest.mark.parametrize("text", ["time=auto", "time=2.5", "time=24,12", "time=2:4"])
def test_values_of_other_types_are_refused_with_the_name_of_the_option(text: str) -> None:
    with pytest.raises(OptionError, match=f"--chunks cannot be read.*{text}.*--chunks time=24"):
        read_pairs("--chunks", [text], types=int)


def test_a_packing_is_a_dtype_and_perhaps_a_precision() -> None:
    assert read_packing(["t2m=int16", "u10=int16,0.01"]) == {"t2m": "int16", "u10": ("int16", 0.01)}
    assert read_packing([]) is None
