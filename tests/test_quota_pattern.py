"""Rows dealt by weight: exact at every row, and the longest epoch equals brute force."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xloader.errors import OptionError
from xloader.loader.interleaved.sample_sets import Interleaving
from xloader.loader.interleaved.set_loaders import share_memory
from xloader.order.quota_pattern import QuotaPattern


@given(
    sizes=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 90)), min_size=1, max_size=5),
    ranks=st.integers(1, 3),
    lanes=st.integers(1, 3),
    has_lanes=st.booleans(),
    batch=st.integers(1, 5),
    drop_last=st.booleans(),
)
def test_the_longest_epoch_equals_brute_force(
    sizes: list[tuple[int, int]],
    ranks: int,
    lanes: int,
    has_lanes: bool,
    batch: int,
    drop_last: bool,
) -> None:
    weights, most = zip(*sizes, strict=True)
    pattern = QuotaPattern(weights)
    dealers = ranks * lanes if has_lanes else ranks
    told = Interleaving(
        pattern, most, ranks, ranks * lanes, dealers, batch * dealers // ranks, drop_last
    )
    num_rows, given = 0, [0] * len(most)
    while True:
        index = int(pattern.sets(num_rows, num_rows + 1)[0])
        # The lanes of a dealer take turns, and each has as many samples as the others.
        if -(-(given[index] + 1) // told.dealer_lanes) > most[index] // told.lanes:
            break
        given[index] += 1
        num_rows += 1
    if drop_last:
        num_rows -= num_rows % told.step_rows
    assert told.num_rows == num_rows
    assert told.num_steps == ceil(Fraction(num_rows, told.step_rows))
    for size, taken, rows in zip(most, told.taken, told.lane_rows, strict=True):
        assert taken <= size
        assert rows * told.lanes <= size
    # The lanes of a rank give its rows.
    for index, end in enumerate(told.counts(told.num_steps)):
        done = [told.done(end, lane) for lane in range(told.lanes // ranks)]
        assert sum(done) == told.rank_dealers * end
        assert max(done, default=0) == told.lane_rows[index]


def test_weights_that_are_sizes_repeat_late_and_are_dealt_in_time() -> None:
    pattern = QuotaPattern((350_640, 175_321, 29_220))
    assert pattern.counts(pattern.period) == pattern.weights
    assert pattern.num_rows((350_640, 175_321, 29_220)) == pattern.period
    assert pattern.counts(3 * pattern.period + 1)[0] == 3 * 350_640 + 1


def test_weights_with_too_many_digits_are_refused_in_long_epochs() -> None:
    pattern = QuotaPattern((123_456_789, 234_567_891))
    assert sum(pattern.counts(1000)) == 1000
    with pytest.raises(OptionError, match=r"so many digits.*round the weights.*\[0.345, 0.655\]"):
        pattern.num_rows((10**8, 10**8))


@given(
    each=st.lists(
        st.tuples(st.integers(1, 50), st.integers(0, 100), st.integers(1, 9)),
        min_size=1,
        max_size=5,
    ),
    more=st.integers(0, 400),
)
def test_memory_is_shared_within_needs(each: list[tuple[int, int, int]], more: int) -> None:
    needs = [need for need, _, _ in each]
    enough = [need + extra for need, extra, _ in each]
    weights = [weight for _, _, weight in each]
    nbytes = sum(needs) + more
    shares = share_memory(nbytes, needs, enough, weights)
    assert sum(shares) <= nbytes
    assert all(a <= b <= c for a, b, c in zip(needs, shares, enough, strict=True))
    # Nothing is kept back while a set could use it, but for rounding.
    assert sum(shares) == sum(enough) or nbytes - sum(shares) <= len(each)
    # Of two sets within their bounds, the one of greater weight has more.
    free = [
        (weight, share)
        for need, share, most, weight in zip(needs, shares, enough, weights, strict=True)
        if need < share < most
    ]
    for (one, own), (other, found) in pairwise(free):
        assert abs(own * other - found * one) <= one + other
