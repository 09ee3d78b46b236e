"""Windows that run on across the date line: what is read, what is said, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.errors import OptionError, UnknownNameError
from xloader.testing import CountingStore, write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")


def globe(num_times: int = 6, num_lats: int = 4, num_lons: int = 36) -> xr.Dataset:
    shape = (num_times, num_lats, num_lons)
    return xr.Dataset(
        {"t2m": (("time", "lat", "lon"), np.arange(np.prod(shape), dtype="f4").reshape(shape))},
        {
            "time": np.datetime64("2001-01-01", "ns")
            + np.arange(num_times) * np.timedelta64(1, "D"),
            "lat": np.linspace(75, -75, num_lats),
            "lon": ("lon", np.arange(num_lons) * 360 / num_lons, {"units": "degrees_east"}),
        },
    )


def stored(ds: xr.Dataset, *chunks: int) -> CountingStore:
    return CountingStore(write_store(ds, {"t2m": chunks}))


def check_epoch(store: CountingStore, ds: xr.Dataset, samples: Samples, **options: Any) -> Any:
    """Check values, and that predicted reads are counted reads; return the prediction."""
    windows = samples.recipe.require_windows()
    dims = ds.t2m.dims
    twice = np.concatenate([ds.t2m.values] * 2, axis=-1)
    with samples.loader(output="numpy", **options) as loader:
        told = loader.explain()
        store.reset()
        seen = []
        for batch in loader:
            firsts = windows.firsts_of(windows.positions_of(batch.ids))
            for number, first, values in zip(batch.ids.tolist(), firsts, batch.t2m, strict=True):
                part = twice
                for dim, begin, size in zip(windows.dims, first, windows.window_sizes, strict=True):
                    part = part.take(range(begin, begin + size), axis=dims.index(dim))
                np.testing.assert_array_equal(values, part)
                seen.append(number)
        assert sorted(seen) == list(range(len(samples)))
        assert told.num_reads == loader.report().num_reads == store.num_reads
    return told


@pytest.mark.parametrize(
    ("memory", "shuffle"), [("24KiB", True), ("24KiB", False), ("40KiB", True), ("1MiB", True)]
)
def test_each_chunk_is_read_once(memory: str, shuffle: bool) -> None:
    """Where the memory holds the chunks round the globe of a few steps."""
    ds = globe(20)
    store = stored(ds, 1, 4, 9)
    samples = xloader.open(store).window(time=1, lat=2, lon=10, stride=1, wrap=("lon",))
    assert len(samples) == 20 * 3 * 36
    told = check_epoch(store, ds, samples, memory=memory, shuffle=shuffle, batch_size=16)
    assert (told.num_reads, told.read_amplification) == (80, 1.0)


@pytest.mark.parametrize("lanes", [1, 4])
def test_memory_for_a_part_of_the_circle(lanes: int) -> None:
    """Along the only windowed dimension, one more seam is one more end of runs."""
    ds = globe(1, 1, 3600).isel(time=0, lat=0, drop=True)
    store = stored(ds, 10)
    samples = xloader.open(store).window(lon=4, stride=1, wrap="lon")
    assert len(samples) == 3600
    options = {"memory": lanes * 24 << 10, "batch_size": 8, "plan": xloader.PlanRules(lanes=lanes)}
    told = check_epoch(store, ds, samples, **options)
    assert told.tile["lon"] < 3600
    assert 360 <= told.num_reads <= 1.05 * 360
    options["shuffle"] = False
    assert check_epoch(store, ds, samples, **options).num_reads <= 360 + 2 * lanes


def test_both_ends_of_one_chunk() -> None:
    """A window that begins in the middle of a chunk may end at the chunk's own begin."""
    ds = globe(2, 1, 10)
    store = stored(ds, 1, 1, 4)
    samples = xloader.open(store).window(lon=10, stride=1, wrap="lon")
    store.reset()
    assert samples[2][0][0, 0].tolist() == [*range(2, 10), 0, 1]
    assert store.num_reads == 6
    for memory in ("6KiB", "1MiB"):
        assert check_epoch(store, ds, samples, memory=memory, batch_size=3).num_reads == 6


def test_windows_at_every_stride() -> None:
    opened = xloader.open(globe())
    assert [len(opened.window(lon=8, stride=s, wrap="lon")) for s in (1, 5, 8, 36)] == [36, 8, 5, 1]
    samples = opened.window(lon=8, stride=5, wrap=("lon",))
    assert samples.positions(np.arange(8))["lon"].values.tolist() == list(range(0, 36, 5))
    assert samples.explain(memory="1MiB").dropped_windows == {}
    # A lead counts on across the date line, and may go once round.
    lead = opened.window(lon=2, stride=1, wrap="lon").inputs("t2m").targets("t2m", lon="+35")
    assert len(lead) == 36
    assert lead[20][1][0, 0] == 19
    assert len(lead.select(lead.ids(lon=[350, 0]))) == 2


def test_what_is_said() -> None:
    samples = xloader.open(globe()).window(time=1, lon=8, stride={"lon": 5}, wrap="lon")
    assert "8, stride 5, wraps: 8 positions" in repr(samples)
    for text in (repr(samples), str(samples.explain(memory="1MiB"))):
        assert "12 of 48 windows wrap along lon" in text
        assert "go round the globe" not in text
    half = xloader.open(globe().isel(lon=slice(18))).window(lon=8, stride=5, wrap="lon")
    text = "labels of lon do not go round the globe (18 steps of 10 degrees: 180 of 360)"
    assert text in str(half.explain(memory="1MiB"))
    assert text in repr(half)
    unlabelled = xloader.open(globe().drop_vars("lon").isel(lon=slice(18)))
    unlabelled = unlabelled.window(lon=8, stride=5, wrap="lon")
    assert "go round the globe" not in str(unlabelled.explain(memory="1MiB"))


BAD: dict[type[Exception], list[tuple[Callable[[Samples], Any], str]]] = {
    UnknownNameError: [
        (
            lambda s: s.window(time=1, wrap="lon"),
            r"wrap= is given for a dimension without windows.*'lon'.*\['time'\]",
        ),
        (lambda s: s.window(lon=1, wrap=("lno",)), "mean.*lon"),
    ],
    OptionError: [
        (
            lambda s: s.window(time=1, wrap="time"),
            "cannot wrap along 'time', whose labels are times",
        ),
        (
            lambda s: s.window(lon=1, wrap="lon", gaps={"lon": "drop"}),
            "cannot both wrap and stop at gaps along 'lon'",
        ),
        (
            lambda s: s.window(lon=37, wrap="lon"),
            "longer than the dimension 'lon'.*37 elements.*at most 36",
        ),
        (
            lambda s: s.window(lon=1, wrap="lon").targets("t2m", lon="+36"),
            "leaves the dimension 'lon'",
        ),
    ],
}


@pytest.mark.parametrize(
    ("error", "act", "message"),
    [(error, act, message) for error, rows in BAD.items() for act, message in rows],
)
def test_refused(error: type[Exception], act: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        act(xloader.open(globe()))
