"""The reference has every public name, and no other; commands and errors are explained."""

from __future__ import annotations

import pytest

from tests.reference_pages import (
    REFERENCE,
    entries,
    public_members,
    public_names,
    resolve,
    table_rows,
)

PAGES = sorted(REFERENCE.glob("*.md"))


@pytest.fixture(scope="module", autouse=True)
def _torch():
    pytest.importorskip("torch")


@pytest.fixture(scope="module")
def texts():
    return {page.name: page.read_text("utf-8") for page in PAGES}


@pytest.fixture(scope="module")
def described(texts):
    return set().union(*(entries(text) for text in texts.values()))


@pytest.fixture(scope="module")
def rows(texts):
    return [row for name, text in texts.items() if name != "api.md" for row in table_rows(text)]


def test_every_public_name_is_in_a_table_of_its_page(rows):
    assert {*public_names()} - {*rows} == set()


def test_the_entry_page_has_every_public_name(texts):
    # The loaders of xbatcher are the same three names once more.
    expected = {name for name in public_names() if ".loaders." not in name}
    assert expected - {*table_rows(texts["api.md"])} == set()


@pytest.mark.parametrize(
    "name", [name for name, value in sorted(public_names().items()) if isinstance(value, type)]
)
def test_every_public_member_is_in_a_table(name, rows):
    members = public_members(public_names()[name])
    assert {f"{name}.{member}" for member in members} - {*rows} == set()


def test_every_row_of_a_table_leads_to_an_entry(rows, texts, described):
    assert {*rows, *table_rows(texts["api.md"])} - described == set()


def test_every_entry_exists(described):
    for name in described:
        if not name.startswith("xarray."):
            resolve(name)
    with pytest.raises(AttributeError):
        resolve("xloader.Samples.nothing")


def test_the_accessor_is_described(described):
    kinds = ("Dataset", "DataArray", "DataTree")
    assert {f"xarray.{kind}.xloader" for kind in kinds} <= described
    assert all(resolve(f"xarray.{kind}.xloader") for kind in kinds)
