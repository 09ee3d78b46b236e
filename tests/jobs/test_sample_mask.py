"""Masks of samples: bits that combine, and that select takes."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import SampleMask
from xloader.errors import EmptySamplesError, OptionError, SampleIndexError

FLAGS = np.random.default_rng(0).random(300) < 0.4
OTHERS = np.random.default_rng(1).random(300) < 0.4


def samples(num: int = 300) -> xloader.Samples:
    return xloader.open(xr.Dataset({"a": ("time", np.arange(num * 1.0))})).window(time=1)


def test_masks_combine_as_arrays_do() -> None:
    one, other = SampleMask.of(FLAGS), SampleMask.of(OTHERS)
    for mask, wanted in (
        (one, FLAGS),
        (one & other, FLAGS & OTHERS),
        (one | other, FLAGS | OTHERS),
        (~one, ~FLAGS),
    ):
        assert len(mask) == 300
        assert mask.num_valid == np.count_nonzero(wanted)
        assert np.asarray(mask).tolist() == wanted.tolist()
        assert np.asarray(mask, np.float32).dtype == np.float32
    assert one == ~~one != other
    assert hash(one) == hash(~~one)
    assert pickle.loads(pickle.dumps(one)) == one
    assert "of 300 samples: a mask" in repr(one)


def test_masks_of_other_samples_are_refused() -> None:
    with pytest.raises(OptionError, match=r"masks of 300 and 299 samples"):
        SampleMask.of(FLAGS) & SampleMask.of(FLAGS[1:])
    with pytest.raises(SampleIndexError, match="299 samples"):
        samples(299).select(SampleMask.of(FLAGS))
    with pytest.raises(EmptySamplesError, match="at_least"):
        samples().select(SampleMask.of(FLAGS & ~FLAGS))
    with pytest.raises(OptionError, match="one bool for each sample"):
        SampleMask.of([0, 1])


def test_select_keeps_what_the_array_keeps() -> None:
    mask = SampleMask.of(FLAGS, "a check")
    kept = samples().select(mask)
    assert kept == samples().select(FLAGS) == samples().select(np.flatnonzero(FLAGS))
    assert hash(kept.recipe) == hash(samples().select(FLAGS).recipe)
    assert kept.positions(range(len(kept))).time.values.tolist() == np.flatnonzero(FLAGS).tolist()
    assert f"{len(kept)} of 300 windows kept by a check" in repr(kept)
    # Selections compose: a mask of a selection, and ids of a masked one.
    inner = np.arange(len(kept)) % 3 == 0
    windows = np.flatnonzero(FLAGS)
    again = kept.select(SampleMask.of(inner, "thinning"))
    assert again == samples().select(windows[inner])
    assert "kept by thinning" in repr(again)
    assert kept.select([5, 2]) == samples().select(windows[[5, 2]])
    shuffled = samples().select([7, 3, 3, 9]).select(SampleMask.of([True, False, True, True]))
    assert shuffled == samples().select([7, 3, 9])
    with samples().select(mask).loader(batch_size=8, output="numpy") as loader:
        assert f"{len(kept)} of 300 windows kept by a check" in str(loader.explain())


def test_weights_follow_a_mask() -> None:
    weights = np.arange(300.0)
    weighted = samples().weighted(weights).select(SampleMask.of(FLAGS))
    assert weighted == samples().select(FLAGS).weighted(weights[FLAGS])
    only_first = SampleMask.of(np.arange(300) == 0)
    with pytest.raises(EmptySamplesError, match="weight 0"):
        samples().weighted(weights).select(only_first)


@pytest.mark.parametrize("shape", [(10_000_000,), (1000, 100, 100)])
@pytest.mark.parametrize("shuffle", [True, False])
def test_planning_takes_bits_and_no_ids(shape: tuple[int, ...], shuffle: bool) -> None:
    """Ids of half of ten million windows would take 40 MB; the mask takes less than 2 MB."""
    dims = ("time", "y", "x")[: len(shape)]
    chunk = 100_000 if len(shape) == 1 else 50
    ds = xr.Dataset({"a": (dims, np.zeros(shape, np.int8))}).chunk(dict.fromkeys(dims, chunk))
    every = xloader.open(ds).window(dict.fromkeys(dims, 1))
    mask = SampleMask.of(np.random.default_rng(0).random(len(every)) < 0.5)
    tracemalloc.start()
    try:
        kept = every.select(mask)
        with kept.loader(batch_size=64, shuffle=shuffle, output="numpy") as loader:
            explained = loader.explain()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert explained.num_samples == mask.num_valid
    # Without a shuffle, each stretch of samples along the last dimension is an entry of the order.
    assert peak < (75e6 if len(shape) > 1 and not shuffle else 30e6)


def test_masks_are_combined_with_flags_and_have_no_truth() -> None:
    mask = SampleMask.of([True, True, False])
    flags = np.array([True, False, True])
    for both in (mask & flags, flags & mask):
        assert np.asarray(both).tolist() == [True, False, False]
    assert np.asarray(flags | mask).tolist() == [True, True, True]
    with pytest.raises(OptionError, match=r"neither true nor false.*mask & other"):
        bool(mask)
    with pytest.raises(OptionError, match="not the flags of a mask"):
        mask & np.array([1, 0, 1])
    with pytest.raises(OptionError, match="masks belong to different samples"):
        mask | [True]
