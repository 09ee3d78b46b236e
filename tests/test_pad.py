"""Windows at padded borders: the values are those of numpy.pad, and only the inside is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.test_wrap import globe, stored
from xloader import Samples
from xloader.errors import OptionError, UnknownNameError
from xloader.recipe.layout import make_layouts
from xloader.testing import CountingStore, write_store
from xloader.transforms.packed_fields import normalized_packings, packed_fields

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

PADS: dict[str, Any] = {"edge": "edge", "reflect": "reflect", "a number": -7.5, "NaN": np.nan}


def padded(ds: xr.Dataset, pad: Any, **width: int) -> xr.Dataset:
    """Return the Dataset with ``width`` more elements on both sides, by xarray."""
    if isinstance(pad, str):
        return ds.pad(width, mode=pad)
    return ds.pad(width, mode="constant", constant_values={"t2m": pad})


@pytest.mark.parametrize("name", PADS)
@pytest.mark.parametrize("size", [1, 5, 9])
def test_values_and_labels_are_those_of_xarray(name: str, size: int) -> None:
    pad = PADS[name]
    ds = globe(2, 9, 12).assign_coords(
        area=(("lat", "lon"), np.random.default_rng(0).random((9, 12)))
    )
    samples = xloader.open(ds).window(lat=size, stride=2, pad={"lat": pad})
    assert len(samples) == 5
    whole = padded(ds, pad, lat=size // 2)
    for number in range(5):
        expected = whole.isel(lat=slice(2 * number, 2 * number + size))
        found = samples.to_xarray(number)
        xr.testing.assert_equal(found, expected)
        assert found.t2m.dtype == np.float32


@pytest.mark.parametrize(
    ("name", "memory", "shuffle"),
    [("edge", "16KiB", True), ("reflect", "16KiB", False), ("NaN", "1MiB", True)],
)
def test_each_chunk_is_read_once(name: str, memory: str, shuffle: bool) -> None:
    ds = globe(20, 9, 12)
    store = stored(ds, 1, 4, 5)
    samples = xloader.open(store).window(
        time=1, lat=5, lon=3, stride={"lat": 1, "lon": 2}, wrap="lon", pad={"lat": PADS[name]}
    )
    whole = padded(xr.concat([ds, ds], "lon"), PADS[name], lat=2).t2m.values
    options = {"batch_size": 7, "memory": memory, "shuffle": shuffle, "on_nan": "ignore"}
    with samples.loader(output="numpy", **options) as loader:
        told = loader.explain()
        store.reset()
        seen = []
        for batch in loader:
            for number, values in zip(batch.ids.tolist(), batch.t2m, strict=True):
                time, lat, lon = np.unravel_index(number, (20, 9, 6))
                expected = whole[time, lat : lat + 5, 2 * lon : 2 * lon + 3]
                np.testing.assert_array_equal(values[0], expected)
                seen.append(number)
        assert sorted(seen) == list(range(20 * 9 * 6))
        assert told.num_reads == loader.report().num_reads == store.num_reads == 20 * 3 * 3
        assert told.read_amplification == 1.0


def test_only_the_inside_is_read() -> None:
    store = stored(globe(1, 12, 1), 1, 3, 1)
    samples = xloader.open(store).window(lat=7, stride=1, pad={"lat": "edge"})
    for number, num_chunks in [(0, 2), (4, 3), (11, 2)]:
        store.reset()
        assert samples[number][0].shape == (1, 7, 1)
        assert store.num_reads == num_chunks
    chosen = samples.select([0, 11])
    assert chosen.explain(batch_size=2, memory="1MiB").num_reads == 4


def packed(*, is_padded_with: Any) -> tuple[xr.Dataset, Samples]:
    rng = np.random.default_rng(1)
    ds = xr.Dataset({"t2m": (("time", "x"), rng.integers(-300, 300, (8, 10)).astype("f4") / 4)})
    encoding = {"t2m": {"dtype": "int16", "scale_factor": 0.25, "_FillValue": -32768}}
    store = CountingStore(write_store(ds, {"t2m": (1, 4)}, encoding=encoding))
    samples = xloader.open(store).window(time=1, x=3, stride=1, pad={"x": is_padded_with})
    return ds, samples.inputs("t2m", time=0).normalize({"t2m": (2.0, 8.0)})


@pytest.mark.parametrize("pad", ["edge", "reflect", 3.3])
def test_packed_numbers_are_padded_before_they_are_normalised(pad: Any) -> None:
    """Also where a table normalises the stored numbers."""
    ds, samples = packed(is_padded_with=pad)
    whole = padded(ds, pad, x=1).t2m.values
    with samples.loader(batch_size=5, output="numpy", memory="1MiB") as loader:
        for batch in loader:
            for number, values in zip(batch.ids.tolist(), batch.inputs, strict=True):
                time, x = divmod(number, 10)
                expected = (whole[time, x : x + 3].astype("f4") - 2) / 8
                np.testing.assert_allclose(values[0], expected, rtol=1e-6)
                np.testing.assert_allclose(samples[number][0][0], expected, rtol=1e-6)


def test_a_number_has_no_stored_form() -> None:
    for pad, is_stored in [("edge", True), ("reflect", True), (3.3, False)]:
        _, samples = packed(is_padded_with=pad)
        layouts = make_layouts(samples.recipe)
        assert bool(packed_fields(samples.recipe, layouts)) == is_stored
        assert bool(normalized_packings(samples.recipe, layouts)) == is_stored


def test_windows_go_by_their_centre() -> None:
    ds = globe(1, 9, 12)
    samples = xloader.open(ds).window(lat=5, stride=2, pad={"lat": "edge"})
    assert samples.positions(np.arange(5))["lat"].values.tolist() == [0, 2, 4, 6, 8]
    assert samples.ids(lat=-75).tolist() == [4]
    assert samples.explain(memory="1MiB").dropped_windows == {}
    # Even windows have one more element before their centre, as in xarray's rolling means.
    even = xloader.open(ds).window(lat=4, stride=1, pad={"lat": np.nan})
    means = np.stack([window[0][0].mean(axis=0) for window in even])
    rolled = ds.t2m[0].rolling(lat=4, center=True).mean()
    np.testing.assert_allclose(means, rolled.values, rtol=1e-6)


def test_what_is_said() -> None:
    samples = xloader.open(globe(1, 9, 12)).window(lat=5, stride=2, pad={"lat": "edge"})
    assert "5, stride 2, centred: 5 positions" in repr(samples)
    for text in (repr(samples), str(samples.explain(memory="1MiB"))):
        assert "2 of 5 windows are padded along lat (edge)" in text


BAD: dict[type[Exception], list[tuple[Callable[[Samples], Any], str]]] = {
    UnknownNameError: [
        (
            lambda s: s.window(time=1, pad={"lat": 0}),
            "pad= is given for a dimension without windows",
        ),
    ],
    OptionError: [
        (
            lambda s: s.window(lat=3, pad={"lat": "mirror"}),
            r"'mirror'.*'edge', 'reflect' or a number",
        ),
        (
            lambda s: s.window(lon=3, pad={"lon": 0}, wrap="lon"),
            "no borders to pad, because its windows wrap",
        ),
        (
            lambda s: s.window(lat=2, dilation={"lat": 2}, pad={"lat": 0}),
            "dilated windows cannot be padded along 'lat'",
        ),
        (
            lambda s: s.window(lat=2, pad={"lat": "reflect"}),
            "even number of elements cannot be mirrored",
        ),
        (
            lambda s: s.window(lat=1, pad={"lat": 0}).inputs("t2m", lat="+1"),
            "takes a part of the window along the padded 'lat'",
        ),
        (
            lambda s: s.window(lat=3, pad={"lat": 0.5}).inputs("count"),
            "cannot hold the number that pads 'lat'.*0.5.*int16",
        ),
        (lambda s: s.window(lat=5, pad={"lat": 0}), "longer than the dim"),
        (
            lambda s: s.window(time=3, pad={"time": 0}),
            "cannot be padded, because its labels have gaps.*1 gaps",
        ),
    ],
}


@pytest.mark.parametrize(
    ("error", "act", "message"),
    [(error, act, message) for error, rows in BAD.items() for act, message in rows],
)
def test_refused(error: type[Exception], act: Any, message: str) -> None:
    ds = globe(40).isel(time=np.delete(np.arange(40), 20))
    ds["count"] = ds.t2m.astype("i2")
    with pytest.raises(error, match=message):
        act(xloader.open(ds))
