"""Labels of batches of tensors, which come from loaders and from workers of a ``DataLoader``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from torch.utils.data import DataLoader

import xloader
from xloader import Batch, Samples
from xloader.errors import OptionError
from xloader.testing import write_store
from xloader.torch import IterableDataset, MapDataset, PadCollate, collate, data_loader

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.WorkersWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    values = np.random.default_rng(1).random((24, 4, 6), np.float32)
    ds = xr.Dataset(
        {"t": (("time", "lat", "lon"), values), "u": (("time", "lat", "lon"), values + 1)},
        {
            "time": pd.date_range("2001-01-01", periods=24),
            "lat": np.arange(4.0),
            "lon": np.arange(6) * 60.0,
        },
    )
    path = tmp_path_factory.mktemp("stores") / "a.zarr"
    write_store(ds, {"t": (6, 4, 6), "u": (6, 4, 6)}, path)
    return path


@pytest.fixture
def samples(store: Path) -> Samples:
    return xloader.open(store).window(time=3, stride=1).inputs("t").targets("u", time=2)


def check(batch: Any, samples: Samples) -> None:
    assert isinstance(batch, Batch)
    wanted = samples.to_xarray(batch.ids)
    xr.testing.assert_identical(batch.to_xarray(), wanted)
    xr.testing.assert_identical(batch.coords.to_dataset(), wanted.coords.to_dataset())


def test_tensors_share_their_memory(samples: Samples) -> None:
    batch = next(iter(samples.loader(batch_size=4)))
    check(batch, samples)
    frame = batch.to_xarray()
    batch.inputs[0, 0, 0, 0, 0] = -1.0
    assert frame.inputs.values[0, 0, 0, 0, 0] == -1.0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_door(samples: Samples, num_workers: int) -> None:
    doors = [
        data_loader(samples, batch_size=4, num_workers=num_workers),
        DataLoader(
            IterableDataset(samples, batch_size=4),
            batch_size=None,
            num_workers=num_workers,
            collate_fn=collate,
        ),
        DataLoader(
            MapDataset(samples),
            batch_size=4,
            shuffle=True,
            num_workers=num_workers,
            collate_fn=collate,
        ),
    ]
    for door in doors:
        batches = list(door)
        assert sum(batch.num_samples for batch in batches) == len(samples)
        for batch in batches:
            check(batch, samples)


def test_functions_of_single_samples(samples: Samples) -> None:
    """The shapes decide: a function that keeps them keeps the labels, and no other."""
    kept = MapDataset(samples, transform=lambda x: x * 2)
    cut = MapDataset(samples, transform=lambda x: x[:, 1:])
    options = {"batch_size": 4, "collate_fn": collate}
    batch = next(iter(DataLoader(kept, **options)))
    wanted = samples.to_xarray(batch.ids)
    np.testing.assert_array_equal(batch.to_xarray().inputs, wanted.inputs * 2)
    batch = next(iter(DataLoader(cut, **options)))
    with pytest.raises(OptionError, match=r"inputs \(4, 1, 2, 4, 6\).*inputs \(4, 1, 3, 4, 6\)"):
        batch.to_xarray()
    assert "time_label" in batch.coords or "inputs_time_label" in batch.coords


def test_fields_that_a_collate_function_adds(samples: Samples) -> None:
    loader = DataLoader(MapDataset(samples), batch_size=4, collate_fn=PadCollate({"inputs": 1}))
    batch = next(iter(loader))
    assert "inputs_lengths" in batch.names
    with pytest.raises(OptionError, match=r"not those of its samples.*inputs_lengths"):
        batch.to_xarray()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(samples: Samples, dtype: Any) -> None:
    batch = next(iter(samples.loader(batch_size=4, device=xloader.OnDevice(dtype=dtype))))
    frame = batch.to_xarray()
    assert frame.inputs.dtype == (np.float32 if dtype == "bfloat16" else np.float16)
    wanted = samples.to_xarray(batch.ids)
    np.testing.assert_allclose(frame.inputs, wanted.inputs, atol=1e-2)
    xr.testing.assert_identical(frame.coords.to_dataset(), wanted.coords.to_dataset())


def test_functions_on_the_device_and_moves(samples: Samples) -> None:
    with samples.loader(
        batch_size=4,
        device=xloader.OnDevice("cpu", transform=lambda b: b.with_arrays([x + 0 for x in b])),
    ) as loader:
        batch = next(iter(loader))
    check(batch, samples)
    check(batch.to("cpu"), samples)
    check(Batch(batch, batch.names, batch.ids, origin=batch.origin), samples)
