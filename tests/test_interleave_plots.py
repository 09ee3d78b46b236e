"""Pictures of several sets: each set has its own, and a call without its name says so."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Loader
from xloader.errors import OptionError, UnknownNameError
from xloader.testing import write_store

pytest.importorskip("matplotlib")


def samples_of(size: int) -> xloader.Samples:
    values = np.random.default_rng(size).normal(size=(size, 4, 6)).astype("f4")
    ds = xr.Dataset({"t2m": (("time", "lat", "lon"), values)})
    return xloader.open(write_store(ds, {"t2m": (4, 4, 6)})).window(time=2)


@pytest.fixture
def loader() -> Iterator[Loader]:
    sets = {"era5": (samples_of(24), 0.25), "cmip": (samples_of(64), 0.75)}
    with xloader.interleave(sets).loader(batch_size=8, output="numpy", memory="4MiB") as made:
        yield made


def test_each_set_has_a_picture_of_its_plan_and_of_its_stages(loader):
    explained = loader.explain()
    for name, num in (("era5", 6), ("cmip", 16)):
        assert (
            explained.plot(name).get_suptitle() == f"Chunks in memory: {num} loads of {num} chunks"
        )
    for _ in loader:
        pass
    report = loader.report()
    assert report.plot("cmip").get_suptitle().startswith(f"{report.sets['cmip'].num_steps} batches")


def test_without_a_name_the_error_lists_the_sets(loader):
    batch = next(iter(loader))
    for call in (loader.explain().plot, loader.report().plot, loader.preview):
        with pytest.raises(OptionError, match="'era5', 'cmip'"):
            call()
        with pytest.raises(UnknownNameError, match="cmip"):
            call(name="cmp")
    with pytest.raises(
        OptionError, match=re.escape("samples.plot(batch.ids[batch.source == name])")
    ):
        batch.plot()


@pytest.mark.parametrize("num_done", [0, 2])
def test_a_preview_has_rows_that_the_next_batch_takes(loader, num_done):
    batches = iter(loader)
    for _ in range(num_done):
        next(batches)
    # An iteration that begins now goes on from here.
    loader.load_state_dict(loader.state_dict())
    pictures = {name: loader.preview(2, name=name) for name in ("era5", "cmip")}
    previewed = {name: drawn_ids(picture) for name, picture in pictures.items()}
    batch = next(iter(loader))
    for name, ids in previewed.items():
        assert len(ids) == 2
        assert set(ids) <= set(batch.ids[batch.source == name].tolist())


def drawn_ids(picture) -> list[int]:
    texts = [own.get_text() for own in picture.texts]
    texts += [axes.get_ylabel() for axes in picture.axes]
    found = [re.search(r"sample (\d+)", text) for text in [*texts, picture.get_suptitle()]]
    return sorted({int(own[1]) for own in found if own})
