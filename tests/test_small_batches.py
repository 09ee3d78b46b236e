"""Small batches, of which more are made ahead than asked for, are those of one thread."""

from __future__ import annotations

import gc
import itertools
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.errors import StoreChangedError
from xloader.testing import write_store

NUM_STEPS, MEMORY, BATCH = 140, 1 << 20, 3
VALUES = np.random.default_rng(1).normal(size=(NUM_STEPS, 32, 64)).astype(np.float32)

pytestmark = [
    pytest.mark.usefixtures("executor"),
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
]


def write(values: Any, path: Path) -> Path:
    """Write a store of 1.2 MB in chunks of 16 KB, four of which a 16th of the memory holds."""
    ds = xr.Dataset({"t2m": (("time", "lat", "lon"), values), "u10": (("time",), values[:, 0, 0])})
    write_store(ds, {"t2m": (8, 16, 32), "u10": (8,)}, path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(VALUES, tmp_path / "store.zarr")


def loader_of(place: Any, *, threads: int = 2, **options: Any) -> xloader.Loader:
    samples = xloader.open(place).window(time=1, lat=8, lon=8, stride={"time": 4})
    if (function := options.pop("map", None)) is not None:
        samples = samples.map(function, random=True)
    given = {"batch_size": BATCH, "memory": MEMORY, "output": "numpy", "on_nan": "ignore"}
    return samples.loader(**(given | options), threads=threads)


def noisy(batch: xr.Dataset, rng: Any) -> xr.Dataset:
    return batch.assign(t2m=batch.t2m + rng.normal(batch.t2m.shape[1:]))


def check_alike(found: list[xloader.Batch], expected: list[xloader.Batch]) -> None:
    assert len(found) == len(expected)
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own.ids, other.ids)
        np.testing.assert_array_equal(own.is_padding, other.is_padding)
        for mine, theirs in zip(own, other, strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    "options",
    [
        # The last batch is short.
        {},
        # Each batch has rows of two lanes, which end at different steps.
        {"plan": xloader.PlanRules(lanes=2), "batch_size": 2},
        # The last batches of some ranks are filled up.
        {"world": xloader.World(2, 3)},
        # The second of three ranks has a sample less than the first: its last batch has no row.
        {"batch_size": 1, "world": xloader.World(1, 3)},
        {"on_nan": "count"},
        {"device": xloader.OnDevice(dtype="float16")},
    ],
    ids=str,
)
def test_batches_are_those_of_one_thread(path: Path, options: Any):
    with loader_of(path, threads=1, **options) as loader:
        expected = [list(loader) for _ in range(2)]
    with loader_of(path, **options) as loader:
        for batches in expected:
            # Kept until the epoch is over: no memory of theirs may be used again.
            check_alike(list(loader), batches)


def test_transforms_take_one_batch_at_a_time(path: Path):
    found = []
    for threads in (1, 2):
        with loader_of(path, threads=threads, map=noisy) as loader:
            found.append(list(itertools.islice(loader, 60)))
    check_alike(*found)


def test_a_closed_iterator_keeps_no_batches(path: Path):
    with loader_of(path) as loader:
        batches = iter(loader)
        for _ in range(9):
            next(batches)
        assert loader._run is not None
        slots = loader._run._slots.values()
        ahead = [weakref.ref(array) for arrays in slots for array in arrays]
        assert len(ahead) > 1
        batches.close()
        gc.collect()
        assert not [array for own in ahead if (array := own()) is not None]


def test_no_value_is_handed_out_that_was_read_after_a_change(path: Path, tmp_path: Path):
    other = write(-VALUES, tmp_path / "other.zarr")
    with loader_of(path) as loader:
        whole = list(loader)
    with loader_of(path) as loader:
        batches = iter(loader)
        delivered = [next(batches) for _ in range(9)]
        metadata = json.loads((path / "t2m" / "zarr.json").read_text())
        metadata["shape"][0] -= 1
        (path / "t2m" / "zarr.json").write_text(json.dumps(metadata))
        for chunk in other.glob("t2m/c/*/*/*"):
            chunk.replace(path / chunk.relative_to(other))
        with pytest.raises(StoreChangedError):
            delivered.extend(batches)
    assert 9 <= len(delivered) < len(whole)
    check_alike(delivered, whole[: len(delivered)])


def test_an_epoch_may_have_fewer_batches_ahead_than_the_last(path: Path):
    with loader_of(path) as loader:
        whole = list(loader)
        loader.set_epoch(0)
        batches = iter(loader)
        for _ in whole[1:]:
            next(batches)
        state = loader.state_dict()
    with loader_of(path) as loader:
        loader.load_state_dict(state)
        # So few chunks are left that the plan counts only these, and no memory is to spare.
        for start, num_ahead in ((-1, 2), (0, 6), (-1, 2)):
            check_alike(list(loader), whole[start:])
            assert loader._run is not None
            assert loader._run._job.num_ahead == num_ahead
            loader.set_epoch(0)
            if start == 0:
                loader.load_state_dict(state)
