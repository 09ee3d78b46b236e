"""Moments of arrays, and the tree that merges parts in a fixed order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from xloader.jobs.merge_trees import MergeTree
from xloader.jobs.statistics.moments import LabelledMoments, Moments
from xloader.jobs.statistics.quantile_sketch import QuantileSketch


def test_long_lines_are_taken_in_pieces():
    values = np.random.default_rng(0).standard_normal(400_001).astype(np.float32) + 1e4
    values[100:200_000] = np.nan
    exact = values[~np.isnan(values)].astype(np.float64)
    found = Moments.of(values, (0,))
    assert found.count == exact.size
    assert_allclose(found.mean, exact.mean(), rtol=1e-13)
    assert_allclose(found.std, exact.std(), rtol=1e-11)


@pytest.mark.parametrize(("shape", "axes"), [((10**6,), (0,)), ((1000, 1000), (0,))])
def test_a_constant_keeps_its_value(shape, axes):
    found = Moments.of(np.full(shape, 273.15, np.float32), axes)
    assert (found.mean == float(np.float32(273.15))).all()
    assert (found.std == 0).all()


def test_merging_with_nothing_changes_no_bit():
    one = Moments.of(np.array([[1.0, np.inf], [2.5, 3.0]]), (0,))
    for both in (one.merge(Moments.empty((2,))), Moments.empty((2,)).merge(one)):
        for name, array in both.arrays().items():
            assert_array_equal(array, one.arrays()[name])


@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_infinite_values_keep_their_sign_in_any_division(seed, is_weighted, has_cells):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((9, 4))
    for found, share in ((np.inf, 0.05), (-np.inf, 0.05), (np.nan, 0.3)):
        values[rng.random(values.shape) < share] = found
    weights = rng.choice([0.5, 1.0, 3.0], values.shape)
    cuts = np.sort(rng.integers(0, 10, 3))
    axes = (0,) if has_cells else (0, 1)
    whole = Moments.empty((4,) if has_cells else ())
    for part, heavy in zip(np.split(values, cuts), np.split(weights, cuts), strict=True):
        whole = whole.merge(Moments.of(part, axes, None, heavy if is_weighted else None))
    given_weights = np.where(np.isnan(values), 0.0, weights if is_weighted else 1.0)
    own = np.where(np.isnan(values), 0.0, values)
    with np.errstate(invalid="ignore"):
        mean = (own * given_weights).sum(axes) / given_weights.sum(axes)
    some = whole.count > 0
    assert_allclose(whole.mean[some], mean[some], rtol=1e-10, atol=1e-12)
    assert_array_equal(np.isfinite(whole.std), np.isfinite(own).all(axes) & some)


@given(st.integers(1, 40), st.randoms(use_true_random=False), st.integers(1, 5))
def test_the_tree_gives_the_same_bits_in_any_order_and_division(num, random, num_parts):
    values = np.random.default_rng(num).standard_normal((num, 17)) * 1e3 + 0.1
    leaves = [Moments.of(row, (0,)) for row in values]
    plain = MergeTree(num, Moments.merge)
    for leaf, value in enumerate(leaves):
        plain.add((0, leaf), value)
    order = list(range(num))
    random.shuffle(order)
    parts = [MergeTree(num, Moments.merge) for _ in range(num_parts)]
    for place, leaf in enumerate(order):
        parts[place % num_parts].add((0, leaf), leaves[leaf])
    whole = MergeTree(num, Moments.merge)
    for part in parts:
        for node, value in part.nodes.items():
            whole.add(node, value)
    for name, array in whole.result().arrays().items():
        assert array.tobytes() == plain.result().arrays()[name].tobytes()
    assert_allclose(whole.result().mean, values.mean(), rtol=1e-9)


def test_few_nodes_are_kept():
    tree = MergeTree(1000, lambda a, b: a + b)
    for leaf in range(1000):
        tree.add((0, leaf), 1)
        assert len(tree.nodes) <= 10
    assert tree.result() == 1000


@pytest.mark.parametrize("shape", [(3,), (2, 4, 1), (0, 5)])
@pytest.mark.parametrize("has_sketches", [False, True])
def test_labelled_moments_are_the_same_from_bytes(
    shape: tuple[int, ...], has_sketches: bool
) -> None:
    moments = Moments.of(np.random.default_rng(0).normal(size=(*shape, 9)), (len(shape),))
    sketches = np.full(shape, QuantileSketch.of(np.arange(7.0)), object) if has_sketches else None
    first = LabelledMoments(np.arange(shape[0]), moments, sketches)
    second = LabelledMoments.from_bytes(first.to_bytes())
    assert_array_equal(second.rows, first.rows)
    for name, array in moments.arrays().items():
        assert_array_equal(getattr(second.moments, name), array, strict=True)
    assert_array_equal(second.sketches, sketches, strict=True)
