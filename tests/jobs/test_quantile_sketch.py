"""Quantile sketches against sorted values, by rank."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest

from xloader.errors import MissingDependencyError, OptionError, UnsupportedDataError
from xloader.jobs.merge_trees import MergeTree
from xloader.jobs.statistics.quantile_sketch import QuantileSketch

# It has no wheels for the newest Python.
pytest.importorskip("crick")

ASKED = np.array([0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999])
SIZE = 20_000

KINDS = {
    "normal": lambda rng, number: rng.normal(280, 10, SIZE),
    "drifting": lambda rng, number: rng.normal(250 + number, 3, SIZE),
    "sorted": lambda rng, number: np.linspace(number, number + 1, SIZE),
    "skewed": lambda rng, number: rng.gamma(0.1, 1, SIZE),
    "half zero": lambda rng, number: np.append(np.zeros(SIZE // 2), rng.gamma(0.3, 2, SIZE // 2)),
    "two hills": lambda rng, number: rng.normal(100 * (number % 2), 1, SIZE),
    "few numbers": lambda rng, number: rng.integers(0, 5, SIZE),
    "of many sizes": lambda rng, number: rng.normal(number, 1, 10 ** (number % 5)),
}


def merged(parts: list[QuantileSketch]) -> QuantileSketch:
    tree = MergeTree(len(parts), QuantileSketch.merge)
    for leaf, part in enumerate(parts):
        tree.add((0, leaf), part)
    return tree.result()


def rank_errors(values: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Distances of the asked ranks from those that the found values have."""
    ordered = np.sort(values)
    first = np.searchsorted(ordered, found, "left") / len(ordered)
    last = np.searchsorted(ordered, found, "right") / len(ordered)
    return np.maximum(0, np.maximum(first - ASKED, ASKED - last))


@pytest.mark.parametrize("kind", KINDS)
def test_quantiles_are_within_the_stated_error(kind: str):
    rng = np.random.default_rng(7)
    chunks = [
        np.asarray(KINDS[kind](rng, number), ("f4", "f8")[number % 2]) for number in range(37)
    ]
    sketch = merged([QuantileSketch.of(chunk) for chunk in chunks])
    values = np.concatenate(chunks)
    assert sketch.size == len(values)
    errors = rank_errors(values, sketch.quantile(ASKED))
    # One value more or less is no error of the sketch.
    allowed = np.array([QuantileSketch.rank_error(q) for q in ASKED]) + 1 / len(values)
    assert (errors <= allowed).all(), (errors / allowed).round(2)
    assert sketch.quantile(np.array([0.0, 1.0])).tolist() == [values.min(), values.max()]
    assert sketch.nbytes < 16_000


def test_a_sketch_goes_through_bytes_and_pickle():
    rng = np.random.default_rng(5)
    one, other = (QuantileSketch.of(rng.normal(size=9999)) for _ in range(2))
    for back in (QuantileSketch.from_bytes(one.to_bytes()), pickle.loads(pickle.dumps(one))):
        assert back == one
        assert back.merge(other).to_bytes() == one.merge(other).to_bytes()
        assert (back.quantile(ASKED) == one.quantile(ASKED)).all()
    for bad in (b"", one.to_bytes()[:-1], one.to_bytes() + b"0" * 16):
        with pytest.raises(OptionError, match="not the bytes of a quantile sketch"):
            QuantileSketch.from_bytes(bad)


def test_nan_and_emptiness():
    nothing = QuantileSketch.of(np.full(5, np.nan, "float32"))
    assert nothing.size == 0
    assert np.isnan(nothing.quantile(ASKED)).all()
    some = QuantileSketch.of([np.nan, 3.0, 1.0, np.nan])
    assert (some.size, some.quantile(0.0), some.quantile(1.0)) == (2, 1, 3)
    assert nothing.merge(some).quantile(1.0) == 3
    assert QuantileSketch.of([]).merge(QuantileSketch.empty()).size == 0
    assert QuantileSketch.from_bytes(nothing.to_bytes()) == nothing


def test_weights_count_as_repeated_values():
    rng = np.random.default_rng(2)
    values, weights = rng.normal(size=4000), rng.integers(0, 5, 4000)
    values[::10] = np.nan
    sketch = QuantileSketch.of(values.reshape(40, 100), weights.reshape(40, 100))
    repeated = np.repeat(values, weights)
    repeated = repeated[~np.isnan(repeated)]
    assert sketch.size == len(repeated)
    allowed = np.array([QuantileSketch.rank_error(q) for q in ASKED]) + 4 / len(repeated)
    assert (rank_errors(repeated, sketch.quantile(ASKED)) <= allowed).all()


@pytest.mark.parametrize("weights", [None, 1.0])
def test_infinite_values_are_an_error(weights: float | None):
    with pytest.raises(UnsupportedDataError, match="infinite"):
        QuantileSketch.of([1.0, np.inf], weights)
    with pytest.raises(UnsupportedDataError, match="infinite"):
        QuantileSketch.of([1.0, -np.inf, np.nan], weights)


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "crick", None)
    with pytest.raises(MissingDependencyError, match=r"crick.*\n?.*"):
        QuantileSketch.of([1.0])


def test_quantiles_are_numbers_from_0_to_1():
    with pytest.raises(OptionError, match="divide percentiles by 100"):
        QuantileSketch.of([1.0]).quantile(50)
