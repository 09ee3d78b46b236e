"""Stores with millions and billions of chunks, which hold metadata only."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.ground import slow_needs
from xloader.core.axis import Axis
from xloader.core.boxes import Boxes
from xloader.core.footprint import Demand, Footprint
from xloader.core.windows import Windows
from xloader.errors import OptionError
from xloader.sources.chunk_sizes import join_sizes
from xloader.testing import write_store


def make_store(path: Path, shape: tuple[int, ...], chunks: tuple[int, ...]) -> Path:
    """Make a store with metadata of this shape and these chunks, and no chunk written."""
    dims = ("time", "x")[: len(shape)]
    write_store(xr.Dataset({"t": (dims, np.zeros((1,) * len(shape), "f4"))}), {}, path)
    document = json.loads((path / "t/zarr.json").read_text())
    document["shape"] = shape
    document["chunk_grid"]["configuration"]["chunk_shape"] = chunks
    (path / "t/zarr.json").write_text(json.dumps(document))
    for written in (path / "t").glob("c/**/*"):
        if written.is_file():
            written.unlink()
    return path


@contextmanager
def within(nbytes: int) -> Iterator[None]:
    """Check that the block allocates at most ``nbytes`` at the same time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= nbytes


@pytest.mark.parametrize(("size", "step"), [(10**9, 3), (2**33, 1), (2**40, 3)])
def test_billions_of_chunks_are_refused_before_they_are_listed(
    tmp_path: Path, size: int, step: int
) -> None:
    torch = pytest.importorskip("xloader.torch")
    path = make_store(tmp_path / "a.zarr", (size,), (1,))
    # Imports take some of this. A list of chunks would take twenty times as much.
    with within(2**27):
        data = xloader.open(path, on_missing="fill").isel(time=slice(None, None, step))
        samples = data.window(time=2, stride=1)
        assert len(samples) == -(-size // step) - 1
        assert f"{len(samples)}" in repr(samples).replace(",", "")
        assert np.isnan(samples[17][0]).all()
        told = r"'t' has too many chunks to plan for. Given: \d+ chunks along 'time'"
        for attempt in (
            lambda: samples.loader(output="numpy"),
            lambda: samples.loader(output="numpy", shuffle=False),
            lambda: samples.explain(),
            lambda: samples.explain([1, 2], cache="lru"),
            lambda: torch.data_loader(samples),
            lambda: torch.IterableDataset(samples),
            lambda: torch.MapDataset(samples)[3],
        ):
            with pytest.raises(OptionError, match=rf"{told}.*Allowed: up to 100000000.*larger"):
                attempt()


def test_the_chunk_size_that_is_named_would_do(tmp_path: Path) -> None:
    path = make_store(tmp_path / "a.zarr", (2**20, 2**20), (2, 1))
    samples = xloader.open(path, on_missing="fill").window(time=1, x=1)
    with pytest.raises(OptionError, match=r"such as \{'time': \d+, 'x': \d+\}") as caught:
        samples.loader(output="numpy")
    text = caught.value.remedy
    named = json.loads(text[text.index("{") : text.index("}") + 1].replace("'", '"'))
    assert (2**20 // named["time"]) * (2**20 // named["x"]) <= 10**8
    assert named["time"] % 2 == 0


def test_chunks_that_every_sample_needs(tmp_path: Path) -> None:
    path = make_store(tmp_path / "a.zarr", (8, 10**9), (1, 1))
    samples = xloader.open(path, on_missing="fill").window(time=1)
    with within(2**24), pytest.raises(OptionError, match=r"Given: 1000000000 chunks along 'x'"):
        samples.loader(output="numpy")


def test_a_part_of_billions_of_chunks_is_planned(tmp_path: Path) -> None:
    path = make_store(tmp_path / "a.zarr", (2**33,), (1,))
    data = xloader.open(path, on_missing="fill")
    for kept in (slice(2**32, 2**32 + 1000), slice(0, None, 2**23)):
        samples = data.isel(time=kept).window(time=1)
        with samples.loader(output="numpy", batch_size=500, on_nan="ignore") as loader:
            ids = np.concatenate([batch.ids for batch in loader])
        assert sorted(ids.tolist()) == list(range(len(samples)))


def test_a_million_tiles_of_patches_that_straddle(tmp_path: Path) -> None:
    path = make_store(tmp_path / "a.zarr", (4000, 4000), (4, 4))
    samples = xloader.open(path, on_missing="fill").window(time=2, x=2, stride=1)
    # A list of the needs of four million cohorts would take more.
    with within(2**27):
        loader = samples.loader(output="numpy", memory="256MiB")
    assert loader.footprint.num_needed == 10**6
    assert loader.plan.is_resident


def test_what_strides_pass_over_is_known_without_a_list_of_windows() -> None:
    # The block of a single element makes any stride longer than the shortest block.
    sizes = (10**6, 1, 10**9)
    axis = Axis(sum(sizes), sizes, range(sum(sizes)))
    windows = Windows(("x",), (axis.size,), (1,), (2,), (1,))
    demand = Demand("t", (axis,), (), 4, frozenset({((0, 1, 1),)}))
    footprint = Footprint.of(windows, (demand,))
    box = Boxes((np.zeros(1, np.int64),), (np.array([len(windows)]),))
    with within(2**20):
        assert footprint.needs(footprint.groups[0], box)[1].tolist() == [0, 1, 2]
    small = Axis(26, (8, 1, 17), range(26))
    for stride in range(2, 9):
        windows = Windows(("x",), (26,), (1,), (stride,), (1,))
        footprint = Footprint.of(windows, (Demand("t", (small,), (), 4, demand.accesses),))
        group = footprint.groups[0]
        box = Boxes((np.zeros(1, np.int64),), (np.array([len(windows)]),))
        expected = set().union(*(slow_needs(windows, group, n) for n in range(len(windows))))
        assert set(footprint.needs(group, box)[1].tolist()) == expected


def test_more_windows_than_ids() -> None:
    with pytest.raises(OptionError, match=r"too many windows to number.*Given: .*To mend"):
        Windows(("x", "y"), (2**40, 2**40), (1, 1), (1, 1), (1, 1))


def test_parts_in_a_row_of_too_many_chunks() -> None:
    assert join_sizes([(1, 10**10), (1, 10**10)]) == 1
    with within(2**20), pytest.raises(OptionError, match="too many chunks to list"):
        join_sizes([(4, 10**10 + 1), (4, 10**10)])
