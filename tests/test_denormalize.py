"""`samples.denormalize` undoes `normalize`, channel by channel, for arrays of any library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from xloader import Samples
from xloader.errors import OptionError, UnknownNameError


def weather() -> xr.Dataset:
    rng = np.random.default_rng(2)
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), 280 + 20 * rng.random((12, 4, 6), np.float32)),
            "z": (("time", "level", "lat", "lon"), 5e4 * rng.random((12, 3, 4, 6))),
            "rain": (("time", "lat", "lon"), rng.integers(0, 9, (12, 4, 6), np.int16)),
            "oro": (("lat", "lon"), rng.random((4, 6))),
        },
        {"level": [500, 700, 850], "lat": np.linspace(60, -60, 4), "lon": np.arange(6) * 60.0},
    )


def stats() -> dict[str, Any]:
    ds = weather()
    return {
        "t2m": (ds.t2m.mean("time"), ds.t2m.std()),
        "z": (ds.z.mean(["time", "lat", "lon"]), ds.z.std(["time", "lat", "lon"])),
        "rain": (4.0, 2.5),
    }


def windows() -> Samples:
    return (
        weather()
        .xloader.window(time=3)
        .inputs("t2m", "z", "rain", "oro", time=slice(0, 2))
        .targets("z", time=2)
        .field("only", "t2m")
        .field("oro", "oro")
    )


def test_variables_without_statistics_stay_exactly() -> None:
    samples = windows().normalize({"t2m": stats()["t2m"]})
    given = samples[[0]].inputs
    np.testing.assert_array_equal(samples.denormalize(given, "inputs")[:, 1:], given[:, 1:])


def test_steps_are_undone_last_first() -> None:
    plain = weather()[["t2m"]].xloader.window(time=3)
    samples = plain.normalize({"t2m": (280, 10)}).fillna(0).normalize({"t2m": (-1.0, 0.5)})
    found = samples.denormalize(samples[[2]].t2m, "t2m")
    np.testing.assert_allclose(found, plain[[2]].t2m, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tensors(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    samples = windows().normalize(stats())
    given = samples[[3, 0]].inputs.astype(dtype)
    tensor = torch.from_numpy(given.copy()).requires_grad_()
    found = samples.denormalize(tensor, "inputs")
    assert found.dtype == getattr(torch, dtype)
    np.testing.assert_allclose(
        found.detach().numpy(), samples.denormalize(given, "inputs"), rtol=1e-6
    )
    found.sum().backward()
    assert float(tensor.grad[0, -2, 0, 0, 0]) == 2.5


def test_any_order_of_bytes() -> None:
    samples = windows().normalize(stats())
    given = samples[[3]].targets
    found = samples.denormalize(given.astype(">f4"), "targets")
    np.testing.assert_array_equal(found, samples.denormalize(given.astype("<f4"), "targets"))


def test_half_precision_gives_single() -> None:
    torch = pytest.importorskip("torch")
    samples = windows().normalize(stats())
    given = samples[[3]].targets.astype(np.float16)
    wanted = samples.denormalize(given.astype(np.float32), "targets")
    assert wanted.max() > np.finfo(np.float16).max / 2
    for half in (given, torch.from_numpy(given), torch.from_numpy(given).bfloat16()):
        found = samples.denormalize(half, "targets")
        assert str(found.dtype).removeprefix("torch.") == "float32"
        np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=400)


def test_labelled_arrays() -> None:
    samples = windows().normalize(stats())
    given = samples[[3, 0]].inputs.astype(np.float32)
    wanted = samples.denormalize(given, "inputs")
    labelled = xr.DataArray(given, dims=("sample", "channel", "time", "lat", "lon"))
    found = samples.denormalize(labelled, "inputs")
    assert isinstance(found, xr.DataArray)
    assert found.dims == labelled.dims
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.map(lambda d: d.isel(inputs_channel=[4, 0, 2])),
        lambda s: s.map(lambda d: d.isel(inputs_channel=2)),
        lambda s: s.map(lambda d: d.isel(lat=slice(None, None, -1), inputs_time=[1])),
        lambda s: s.transpose("lon", ...),
        lambda s: s.mean("lon").expand_dims("member"),
        lambda s: s.sortby("lat"),
    ],
)
def test_labels_say_which_number_belongs_to_what(change: Any) -> None:
    numbers = {"rain": (4.0, 2.5), "z": stats()["z"], "t2m": (280.0, stats()["t2m"][0].mean("lon"))}
    changed, plain = change(windows().normalize(numbers)), change(windows())
    found = changed.denormalize(changed[[3, 0]].inputs, "inputs")
    np.testing.assert_allclose(found, plain[[3, 0]].inputs, rtol=1e-5, atol=1e-3)


def test_numbers_that_a_transform_has_lost() -> None:
    samples = windows().normalize(stats())
    for changed in (
        samples.mean("inputs_channel"),
        samples.coarsen(lat=2).mean(),
        samples.rename(lat="y"),
        samples.drop_vars("lon").map(lambda d: d.isel(lon=slice(1, None))),
    ):
        with pytest.raises(OptionError, match="after normalize has changed"):
            changed.denormalize(changed[0][0], "inputs")
    # A field of another variable is not affected.
    coarse = samples.coarsen(lat=2).mean()
    assert coarse.denormalize(coarse[[0]].targets, "targets").shape == (1, 3, 2, 6)


def test_errors() -> None:
    plain = windows()
    samples = plain.normalize(stats())
    with pytest.raises(OptionError, match="the field 'inputs' is not normalised"):
        plain.denormalize(plain[0][0], "inputs")
    with pytest.raises(OptionError, match="the field 'oro' is not normalised"):
        samples.denormalize(samples[0][3], "oro")
    with pytest.raises(OptionError, match=r"'new' is not normalised.*that a transform has made"):
        samples.assign(new=lambda d: d.only).denormalize(np.zeros((3, 4, 6)), "new")
    with pytest.raises(UnknownNameError, match=r"'input'.*did you mean 'inputs'"):
        samples.denormalize(samples[0][0], "input")
    inputs = samples[[0, 1]].inputs
    for wrong in (inputs[:, 1:], inputs[None], inputs[0, 0], 3.0):
        with pytest.raises(OptionError, match=r"the shape of the field 'inputs'.*\(n, 6, "):
            samples.denormalize(wrong, "inputs")
    with pytest.raises(OptionError, match="only floating numbers"):
        samples.denormalize(inputs.astype(int), "inputs")
