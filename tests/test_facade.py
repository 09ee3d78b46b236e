"""The public face fits in a head: few names, few members of a class, few parameters of a call."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

import xloader
from tests.ledger import error_classes
from tests.reference_pages import public_members, public_names

MOST_MEMBERS, MOST_PARAMETERS = 20, 12

LARGER = {
    # Most are the methods of xarray that are recorded.
    "Samples": 83,
    "Samples.loader": 16,
    "Samples.explain": 19,
    "Samples.advise": 18,
    "Samples.materialize": 18,
    "Interleaved.loader": 16,
    "Interleaved.explain": 16,
    "Rollout": 17,
    "IterableDataset": 13,
    "stats": 14,
    # Their parameters are their attributes. Users get them, and do not make them.
    "Explanation": 31,
    "Report": 44,
}
"""What is larger than that, and how large. This list only shrinks."""


def sizes() -> Iterator[tuple[str, int, int]]:
    """Yield what is public, its number of members or parameters, and the most allowed."""
    for path, value in public_names().items():
        name = path.rpartition(".")[2]
        calls = {name: value}
        if isinstance(value, type):
            members = public_members(value)
            yield name, len(members), MOST_MEMBERS
            calls |= {f"{name}.{member}": getattr(value, member) for member in members}
        for call, function in calls.items():
            if callable(function):
                parameters = {*inspect.signature(function).parameters} - {"self"}
                yield call, len(parameters), MOST_PARAMETERS


def test_classes_have_few_members_and_functions_few_parameters() -> None:
    larger: dict[str, int] = {}
    for name, size, most in sizes():
        if size > most:
            larger[name] = max(size, larger.get(name, 0))
    assert larger == LARGER


@pytest.mark.parametrize(
    ("count", "most"),
    [
        (len(xloader.__all__), 33),
        (len(inspect.signature(xloader.Samples.loader).parameters) - 1, 16),
        (len(public_members(xloader.Loader)), 17),
        (len(error_classes()), 38),
    ],
    ids=["names", "options of a loader", "members of a loader", "errors and warnings"],
)
def test_the_face_is_small(count: int, most: int) -> None:
    assert count <= most
