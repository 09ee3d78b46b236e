"""Packed fields cross to a device as stored, and arrive as the values that xarray gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import xloader
from tests.device.fake_hardware import BusHardware, FakeHardware
from xloader import Batch, OnDevice, Samples, World
from xloader.errors import NanWarning
from xloader.testing import write_store

UseDevice = Callable[[FakeHardware], FakeHardware]

NUM = 60


def make_samples(dtype: str = "<i2") -> Samples:
    """Samples of a packed field with missing values, and of a field of floats."""
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 100, (NUM, 8, 32)).astype(dtype)
    attrs = {"scale_factor": 0.25, "add_offset": 270.0, "_FillValue": packed.dtype.type(7)}
    dataset = xr.Dataset(
        {
            "t": (("time", "y", "x"), packed, attrs),
            "w": (("time", "y", "x"), rng.normal(size=(NUM, 8, 32)).astype("f4")),
        }
    )
    store = write_store(dataset, {"t": (4, 8, 32), "w": (4, 8, 32)})
    samples = xloader.open(store).window(time=1).inputs("t").targets("w")
    return samples.normalize({"t": (280.0, 5.0)}).fillna(-9.0)


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.to(torch.float64).numpy()


def check_equal(samples: Samples, rtol: float = 1e-5, dtype: Any = None, **options: Any) -> None:
    """Compare batches of the device with those that stay in ordinary memory."""
    with (
        samples.loader(batch_size=7, device=OnDevice("cpu", dtype=dtype), **options) as loader,
        samples.loader(batch_size=7, device=OnDevice(dtype=dtype), **options) as plain,
    ):
        kept = list(loader)
        for batch, other in zip(kept, plain, strict=True):
            assert (batch.ids == other.ids).all()
            for name in batch.names:
                assert batch[name].dtype == other[name].dtype
                assert batch[name].shape == other[name].shape
                np.testing.assert_allclose(
                    as_numpy(batch[name]), as_numpy(other[name]), rtol=rtol, atol=rtol
                )
        assert loader.report().num_reads == plain.report().num_reads


@pytest.mark.parametrize("dtype", ["i1", "u1", "<i2", ">i2", "<u2", ">u2", "<i4", ">i4", "<u4"])
def test_values_are_those_of_ordinary_memory(use_device: UseDevice, dtype: str) -> None:
    hardware = use_device(BusHardware())
    samples = make_samples(dtype)
    check_equal(samples)
    size = 8 * 32
    expected = NUM * size * (np.dtype(dtype).itemsize + 4)
    # All fields of a batch cross together, with the short gap between them.
    assert expected <= hardware.num_bytes <= expected + 9 * 4096
    with samples.loader(batch_size=7, device="cpu") as loader:
        assert "inputs as stored" in loader.explain().transfer
    if dtype == "<i2":
        # The last batch of a rank with a sample less is padded.
        check_equal(samples.select(range(NUM - 1)), world=World(1, 2))


def test_labels_of_points_cross_beside_packed_fields(use_device: UseDevice) -> None:
    use_device(BusHardware())
    table = {
        "time": np.arange(NUM)[::-1],
        "snow": np.arange(NUM, dtype="f4") / 3,
        "wind": np.arange(NUM) / 7,
        "hour": np.arange(NUM) % 24,
        "is_wet": np.arange(NUM) % 3 == 0,
    }
    samples = make_samples().at_points(table)
    check_equal(samples)
    with samples.loader(batch_size=7, device="cpu") as loader:
        assert "inputs as stored" in loader.explain().transfer
        for batch in loader:
            for name in list(table)[1:]:
                np.testing.assert_array_equal(batch[name].numpy(), table[name][batch.ids])


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_narrow_results(use_device: UseDevice, name: Any) -> None:
    use_device(BusHardware(1))
    check_equal(make_samples(), 1e-5 if name == "float32" else 2e-2, dtype=name)


def test_narrow_values_cross_narrow(use_device: UseDevice) -> None:
    """They are converted where they lie, so that a large field leaves a gap that is left out."""
    hardware = use_device(BusHardware(2))
    values = np.random.default_rng(0).normal(size=(12, 256, 256)).astype("f4")
    dataset = xr.Dataset({"w": (("time", "y", "x"), values)})
    samples = dataset.xloader.window(time=1).inputs("w").targets("w")
    check_equal(samples, 1e-2, dtype="bfloat16")
    assert hardware.num_bytes == 2 * 2 * values.size


def test_out_and_transforms_get_values(use_device: UseDevice) -> None:
    use_device(BusHardware(3))
    out = Batch(
        [torch.zeros(6, 1, 1, 8, 32), torch.zeros(6, 1, 1, 8, 32)],
        ["inputs", "targets"],
        np.arange(6),
    )
    samples = make_samples()
    with (
        samples.loader(batch_size=6, device=xloader.OnDevice("cpu", out=out)) as loader,
        samples.loader(
            batch_size=6,
            device=xloader.OnDevice("cpu", transform=lambda b: (b.inputs + 1, b.targets)),
        ) as changed,
        samples.loader(batch_size=6) as plain,
    ):
        for batch, more, other in zip(loader, changed, plain, strict=True):
            assert batch.inputs is out.inputs
            torch.testing.assert_close(out.inputs, other.inputs)
            torch.testing.assert_close(more.inputs, other.inputs + 1)


def test_missing_numbers_are_found_before_they_cross(use_device: UseDevice) -> None:
    use_device(BusHardware(4))
    samples = xloader.open(
        write_store(
            xr.Dataset(
                {"t": (("time", "x"), np.array([[1, 7]] * 8, "i2"), {"_FillValue": np.int16(7)})}
            ),
            {"t": (4, 2)},
        )
    ).window(time=1)
    with samples.loader(batch_size=4, device="cpu") as loader:
        assert "t as stored" in loader.explain().transfer
        with pytest.warns(NanWarning, match="4 values of the field 't'"):
            batches = list(loader)
    assert all(batch.t[..., 1].isnan().all() for batch in batches)


def test_explain_says_that_results_of_map_are_copied(use_device: UseDevice) -> None:
    use_device(FakeHardware())
    samples = make_samples().map(lambda ds: ds)
    with samples.loader(device="meta", memory="64MiB") as loader:
        told = loader.explain().transfer
    assert told.endswith("targets as values, copied into pinned memory after the transforms")
    with samples.loader() as loader:
        assert loader.explain().transfer == ""
