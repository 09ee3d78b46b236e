"""However the windows of a subset are kept, plans, orders and needs are the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ground import footprints, slow_needs
from xloader.core import subset, window_sets
from xloader.core.footprint import Footprint
from xloader.core.subset import Members, Subset
from xloader.core.window_sets import WindowBits, WindowList
from xloader.order import listed
from xloader.order.cohorts import Cohorts, cut_cohorts
from xloader.order.protocol import AnyOrder
from xloader.order.shuffle import Pace, Shuffle
from xloader.planning.cache_budget import least_nbytes
from xloader.planning.mixing import full_mixing


@contextmanager
def boxes_are(wanted: bool) -> Iterator[None]:
    """Have subsets counted box by box always, or never."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subset, "is_worth_boxing", lambda *_: wanted)
        if not wanted:
            patch.setattr(listed, "_possible_begins", lambda *_: None)
        yield


@st.composite
def chosen(draw: st.DrawFn) -> tuple[Footprint, np.ndarray]:
    """Draw a footprint, and which of its windows are samples."""
    footprint = draw(footprints(max_dims=3))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    flags = rng.random(len(footprint.windows)) < draw(st.sampled_from([0.05, 0.5, 0.95]))
    flags[draw(st.integers(0, len(flags) - 1))] = True
    return footprint, flags


def kept_as(footprint: Footprint, flags: np.ndarray, kind: str) -> Footprint:
    bits = WindowBits.of_flags(flags)
    kinds = {
        "bits": bits,
        "runs": bits.runs(),
        "list": WindowList(len(flags), np.flatnonzero(flags)),
    }
    return replace(footprint, subset=Subset(len(flags), kinds[kind]))


def steps_of(order: AnyOrder) -> list[tuple[int, ...]]:
    """Each sample with the visit or cohort that it belongs to."""
    found = [np.stack([ids, entries], axis=-1) for ids, entries in order.segments()]
    return [tuple(row) for row in np.concatenate(found).tolist()] if found else []


@given(chosen(), st.integers(0, 3), st.integers(0, 5), st.integers(1, 2))
def test_shuffled_orders(
    case: tuple[Footprint, np.ndarray], block: int, spread: int, lanes: int
) -> None:
    footprint, flags = case
    tiling = (block,) * len(footprint.windows.dims)
    pace = Pace(tiling, 0, 2, 2, spread, lanes)

    def orders(own: Footprint, cohorts: Cohorts) -> list[list[tuple[int, ...]]]:
        shuffle = Shuffle(own.windows, cohorts, pace, 3, 1)
        return [steps_of(shuffle.lane(lane, spread)) for lane in range(lanes)]

    with boxes_are(False):
        own = kept_as(footprint, flags, "list")
        cohorts = cut_cohorts(own, tiling)
        assert isinstance(cohorts.members, Members)
        counts, wanted = cohorts.num_samples.tolist(), orders(own, cohorts)
        mixing = full_mixing(own, 4)
    for kind in ("bits", "runs", "list"):
        with boxes_are(True):
            own = kept_as(footprint, flags, kind)
            cohorts = cut_cohorts(own, tiling)
            assert not isinstance(cohorts.members, Members)
            assert cohorts.num_samples.tolist() == counts
            assert orders(own, cohorts) == wanted
            assert full_mixing(own, 4) == pytest.approx(mixing)


@given(chosen())
def test_needs(case: tuple[Footprint, np.ndarray]) -> None:
    """The blocks that any sample needs, and the most bytes that a single one needs."""
    footprint, flags = case
    found = []
    for is_boxed in (True, False):
        with boxes_are(is_boxed):
            own = kept_as(footprint, flags, "bits")
            for group in own.groups:
                wanted: set[int] = set()
                for sample in np.flatnonzero(flags).tolist():
                    wanted |= slow_needs(own.windows, group, sample)
                assert own.needed(group).tolist() == sorted(wanted)
            found.append((own.num_needed, own.total_nbytes, least_nbytes(own)))
    assert found[0] == found[1]


def test_few_samples_of_very_many_windows_are_a_list() -> None:
    """A thousand windows of a trillion are planned without a bit for each window."""
    own = Subset(10**12, np.arange(1000) * 7 + 10**11)
    assert isinstance(own.indices, WindowList)
    shape, starts = (10**6, 10**6), (np.array([0, 10**6]), np.array([0, 500, 10**6]))
    assert own.boxed(shape, starts) is None
    assert not window_sets.is_worth_boxing(own.indices, shape, starts)


def test_the_digest_does_not_depend_on_it() -> None:
    flags = np.random.default_rng(0).random(999) < 0.5
    bits = WindowBits.of_flags(flags)
    kinds = [bits, bits.runs(), WindowList(999, np.flatnonzero(flags))]
    assert len({Subset(999, own).digest for own in kinds}) == 1
    # It is the hash of the ids, as it was when these were listed.
    assert Subset(4, np.array([1, 3])).digest == (
        "203145d15bfc4e90539c6f192d7024612d683a8e50c30b15ec1bc3f33b77bca1"
    )
