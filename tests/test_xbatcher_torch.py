"""xbatcher's PyTorch datasets over planned reads, under PyTorch's own DataLoader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from xloader import xbatcher as ours
from xloader.errors import BatchGeneratorWarning, UnsupportedDataError
from xloader.testing import write_store

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", params=["lazy", "dask", "memory"])
def ds_xy(request, tmp_path_factory):
    rng = np.random.default_rng(0)
    ds = xr.Dataset(
        {
            "x": (("sample", "feature"), rng.random((100, 5))),
            "y": (("sample",), rng.random(100)),
        }
    )
    if request.param == "memory":
        return ds
    path = tmp_path_factory.mktemp("xy") / "xy.zarr"
    write_store(ds, {"x": (15, 5), "y": (100,)}, path)
    return xr.open_zarr(path, consolidated=False, chunks={} if request.param == "dask" else None)


KINDS = pytest.mark.parametrize(("x", "y"), [("x", "y"), (["x"], ["y"])], ids=["array", "dataset"])


def generators(module: Any, ds: xr.Dataset, x: Any, y: Any) -> tuple[Any, Any]:
    return module.BatchGenerator(ds[x], {"sample": 10}), module.BatchGenerator(
        ds[y], {"sample": 10}
    )


def expected_batch(ds: xr.Dataset, number: int) -> tuple[np.ndarray, np.ndarray]:
    part = ds.isel(sample=slice(10 * number, 10 * number + 10))
    return part["x"].to_numpy(), part["y"].to_numpy()


@KINDS
def test_map_dataset(ds_xy, x, y):
    x_gen, y_gen = generators(ours, ds_xy, x, y)
    dataset = ours.MapDataset(x_gen, y_gen)
    assert len(dataset) == len(x_gen) == 10
    for number in (0, 7, torch.tensor([3]), torch.tensor(3)):
        inputs, targets = dataset[number]
        for actual, expected in zip(
            (inputs, targets), expected_batch(ds_xy, int(number)), strict=True
        ):
            np.testing.assert_array_equal(actual.numpy(), expected, strict=True)
    with pytest.raises(NotImplementedError, match="one whole number"):
        dataset[torch.tensor([0, 1])]
    alone = ours.MapDataset(x_gen)[9]
    np.testing.assert_array_equal(alone.numpy(), expected_batch(ds_xy, 9)[0], strict=True)


@KINDS
def test_map_dataset_with_transforms(ds_xy, x, y):
    dataset = ours.MapDataset(
        *generators(ours, ds_xy, x, y),
        transform=lambda batch: ours.to_tensor(batch * 0 + 1),
        target_transform=lambda batch: ours.to_tensor(batch * 0 - 1),
    )
    inputs, targets = dataset[0]
    assert inputs.shape == (10, 5)
    assert (inputs == 1).all()
    assert targets.shape == (10,)
    assert (targets == -1).all()
    with pytest.raises(UnsupportedDataError, match="target_transform did not return a tensor"):
        ours.MapDataset(*generators(ours, ds_xy, x, y), target_transform=len)[0]


@pytest.mark.parametrize(("num_workers", "shuffle"), [(0, True), (2, False)])
def test_map_dataset_under_a_data_loader(ds_xy, num_workers, shuffle):
    dataset = ours.MapDataset(*generators(ours, ds_xy, "x", "y"))
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, shuffle=shuffle, num_workers=num_workers
    )
    for _ in range(2):
        batches = [inputs.numpy() for inputs, _ in loader]
        expected = [expected_batch(ds_xy, number)[0] for number in range(10)]
        at = [[np.array_equal(batch, one) for one in expected].index(True) for batch in batches]
        assert sorted(at) == list(range(10))
        assert (at == sorted(at)) is not shuffle


@pytest.mark.parametrize("num_workers", [0, 2])
def test_iterable_dataset_gives_every_batch_once(ds_xy, num_workers):
    dataset = ours.IterableDataset(*generators(ours, ds_xy, "x", "y"))
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=num_workers)
    batches = [(inputs.numpy(), targets.numpy()) for inputs, targets in loader]
    # Two workers take turns, and each has one half of the batches.
    order = list(range(10)) if not num_workers else [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]
    for actual, number in zip(batches, order, strict=True):
        for one, expected in zip(actual, expected_batch(ds_xy, number), strict=True):
            np.testing.assert_array_equal(one, expected, strict=True)


def test_datasets_equal_those_of_xbatcher(ds_xy):
    theirs = pytest.importorskip("xbatcher", reason="xbatcher is not there to compare with")
    loaders = pytest.importorskip("xbatcher.loaders.torch")
    pairs = [
        (ours.MapDataset(*generators(ours, ds_xy, "x", "y")),
         loaders.MapDataset(*generators(theirs, ds_xy, "x", "y"))),
        (ours.IterableDataset(*generators(ours, ds_xy, "x", "y")),
         loaders.IterableDataset(*generators(theirs, ds_xy, "x", "y"))),
        # xbatcher's own generators work as well.
        (ours.IterableDataset(*generators(theirs, ds_xy, "x", "y")),
         loaders.IterableDataset(*generators(theirs, ds_xy, "x", "y"))),
    ]  # fmt: skip
    for mine, other in pairs:
        for actual, expected in zip(
            *(torch.utils.data.DataLoader(dataset, batch_size=None) for dataset in (mine, other)),
            strict=True,
        ):
            for one, another in zip(actual, expected, strict=True):
                assert one.dtype == another.dtype
                assert torch.equal(one, another)


def test_the_documented_names(ds_xy):
    import xloader.xbatcher.loaders.torch

    for name in ("MapDataset", "IterableDataset", "to_tensor"):
        assert getattr(xloader.xbatcher.loaders.torch, name) is getattr(ours, name)
    dataset = ours.MapDataset(*generators(ours, ds_xy, "x", "y"))
    model = torch.nn.Linear(5, 1, dtype=torch.float64)
    for inputs, targets in torch.utils.data.DataLoader(dataset, batch_size=None):
        torch.nn.functional.mse_loss(model(inputs)[:, 0], targets).backward()
    assert torch.isfinite(model.weight.grad).all()


def test_generators_of_unequal_length_are_told_of(ds_xy):
    x_gen, y_gen = generators(ours, ds_xy, "x", "y")
    short = ours.BatchGenerator(ds_xy["y"], {"sample": 30})
    with pytest.warns(BatchGeneratorWarning, match="10 and 3 batches"):
        assert len(list(ours.IterableDataset(x_gen, short))) == 3
    with pytest.warns(BatchGeneratorWarning, match="3 and 10 batches"):
        assert len(ours.MapDataset(short, y_gen)) == 3
