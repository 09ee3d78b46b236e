"""Surprising settings are noted: windows that do not overlap, and epochs without a batch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.errors import EmptyEpochWarning

NOTE = 'windows do not overlap: 121 samples; `stride={"time": 1}` gives 721'


def opened() -> Samples:
    return xloader.open(xr.Dataset({"t": (("time", "lat"), np.zeros((726, 9)))}))


def test_windows_that_do_not_overlap_say_so() -> None:
    samples = opened().window(time=6)
    assert (len(samples), len(opened().window(time=6, stride={"time": 1}))) == (121, 721)
    for text in (repr(samples), str(samples.explain())):
        assert NOTE in text
    assert "windows do not overlap" in samples._repr_html_()
    assert samples.explain().notes == (NOTE,)
    with samples.loader(output="numpy") as loader:
        assert loader.explain().notes == loader.explain("world").notes == (NOTE,)


@pytest.mark.parametrize(
    "asked",
    [
        {"time": 6, "stride": 6},
        {"time": 6, "stride": {"time": 6}},
        {"time": 1},
        {"time": 6, "dilation": 2},
        {"time": 726},
    ],
    ids=["a stride", "a stride by name", "windows of one", "a dilation", "one window"],
)
def test_where_there_is_no_surprise_nothing_is_said(asked: dict[str, Any]) -> None:
    samples = opened().window(**asked)
    assert samples.explain().notes == ()
    assert "overlap" not in repr(samples)


def test_patches_and_subsets_are_counted_as_they_are() -> None:
    patches = opened().window(time=1, lat=3, stride={"time": 2})
    denser = opened().window(time=1, lat=3, stride={"time": 2, "lat": 1})
    (note,) = patches.explain().notes
    expected = f'{len(patches):,} samples; `stride={{"lat": 1}}` gives {len(denser):,}'
    assert note == f"windows do not overlap: {expected}"
    (note,) = opened().window(time=6).select(range(9)).explain().notes
    assert note == NOTE.replace("samples", "windows")


def test_a_stride_that_was_asked_for_changes_no_sample() -> None:
    """A stride equal to the default gives the same recipe and fingerprint as no stride."""
    asked, default = opened().window(time=6, stride=6), opened().window(time=6)
    assert asked.recipe == default.recipe
    assert asked.recipe.fingerprint == default.recipe.fingerprint


def few() -> Samples:
    return opened().isel(time=slice(0, 5)).window(time=1)


EMPTY = "0 batches: 5 samples are fewer than one batch of 16, drop_last=True"


def test_an_epoch_without_a_batch_says_so() -> None:
    with few().loader(batch_size=16, drop_last=True, output="numpy") as loader:
        assert len(loader) == 0
        assert loader.explain().notes == (EMPTY,)
        assert EMPTY in str(loader.explain())
        with pytest.warns(EmptyEpochWarning, match=f"^{EMPTY}: pass drop_last=False or a smaller"):
            assert list(loader) == []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert list(loader) == []


@pytest.mark.parametrize("shuffle", [True, False])
def test_on_several_ranks_the_global_batch_counts(shuffle: bool) -> None:
    samples = few().select(range(3))
    options = {"batch_size": 2, "drop_last": True, "output": "numpy", "shuffle": shuffle}
    with samples.loader(rank=0, world_size=2, **options) as loader:
        words = "0 batches: 3 samples are fewer than one global batch of 4, 2 on each of 2 ranks"
        with pytest.warns(EmptyEpochWarning, match=words):
            assert list(loader) == []


def test_epochs_with_batches_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with few().loader(batch_size=16, output="numpy") as loader:
            assert len(list(loader)) == 1
            assert loader.explain().notes == ()
        with few().loader(batch_size=5, drop_last=True, output="numpy") as loader:
            assert len(list(loader)) == 1
    order = few().explain(np.arange(5), batch_size=16, drop_last=True)
    assert (order.num_steps, order.notes) == (1, ())


@pytest.mark.parametrize("door", ["data_loader", "IterableDataset"])
def test_the_doors_say_it_as_well(door: str) -> None:
    doors = pytest.importorskip("xloader.torch")
    data = pytest.importorskip("torch.utils.data")
    made = getattr(doors, door)(few(), 16, drop_last=True)
    assert made.explain().notes == (EMPTY,)
    loader = data.DataLoader(made, batch_size=None) if door == "IterableDataset" else made
    with pytest.warns(EmptyEpochWarning, match=EMPTY):
        assert list(loader) == []
