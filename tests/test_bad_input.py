"""Bad input is refused before any value is read, and errors have all four parts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given

import xloader
from tests.cases import Case, cases
from xloader.errors import (
    EmptySamplesError,
    MemoryBudgetError,
    OptionError,
    SourceNotFoundError,
    UnknownNameError,
    UnsupportedDataError,
    XloaderError,
)
from xloader.testing import CountingStore, write_store


def make_dataset() -> xr.Dataset:
    return xr.Dataset(
        {
            "t": (("time", "lat", "lon"), np.zeros((24, 4, 6), np.float32)),
            "turned": (("lat", "time", "lon"), np.zeros((4, 24, 6), np.float32)),
            "series": (("time",), np.zeros(24)),
            "words": (("time",), np.full(24, "word", dtype=object)),
            "dates": (("time",), np.arange(24).astype("M8[ns]")),
        },
        coords={"time": np.arange(24), "lat": [60.0, 30.0, 0.0, -30.0]},
    )


def windowed(samples: Any) -> Any:
    return samples.window(time=3)


Attempt = Callable[[Any], Any]

REFUSALS: list[tuple[type[XloaderError], Attempt, str]] = [
    (UnknownNameError, lambda s: windowed(s).inputs("tt"),
     r"no variable with this name. Given: 'tt'. Allowed: .*'t', .*To mend it: did you mean 't'"),
    (UnknownNameError, lambda s: s.window(tine=3),
     r"no dimension with this name. Given: 'tine'. Allowed: 'time'.*did you mean 'time'"),
    (UnknownNameError, lambda s: s.isel(level=0),
     r"no dimension with this name. Given: 'level'. Allowed: 'time', .*To mend it: "),
    (UnknownNameError, lambda s: s.sel(time=99),
     r"Given: .*99.*Allowed: .*To mend it: "),
    (UnknownNameError, lambda s: s.window(time=3, stride={"lat": 1}),
     r"given for a dimension without windows. Given: 'lat'. Allowed: .*To mend it: add 'lat' to"),
    (OptionError, lambda s: s.window(time=25),
     r"longer than the dimension 'time'. Given: .*25 elements. Allowed: at most 24.*smaller"),
    (OptionError, lambda s: s.window(time=12, dilation=3),
     r"longer than the dimension 'time'. Given: .*34 elements. Allowed: at most 24.*dilation"),
    (OptionError, lambda s: s.window(time=3, stride=0),
     r"the stride along 'time' is too small. Given: 0. To mend it: pass stride={'time': 1}"),
    (OptionError, lambda s: s.window(time=3, dilation={"time": 0}),
     r"the dilation along 'time' is too small. Given: 0. To mend it: pass dilation={'time': 1}"),
    (OptionError, lambda s: s.window(time=2.5),
     r"not a whole number. Given: 2.5. To mend it: pass a number of elements >= 1"),
    (EmptySamplesError, lambda s: s.sel(time=slice(30, 40)).window(time=1),
     r"no label of .*'time' is selected. Given: slice\(30.*Allowed: .*0 to 23.*To mend it: "),
    (EmptySamplesError, lambda s: s.window(time=12).loader(world=xloader.World(0, 3)),
     r"fewer samples than ranks. Given: 2 samples, world_size=3. To mend it: .*fewer ranks"),
    (EmptySamplesError, lambda s: s.window(lat=1).inputs("series").loader(output="numpy"),
     r"no field has a variable along a windowed dim.*Given: .*'lat'.*To mend it: "),
    (OptionError, lambda s: windowed(s).inputs("t", "turned"),
     r"cannot share one array. Given: 't' with .*'turned' with .*To mend it: make"),
    (OptionError, lambda s: s.window(time=1).inputs("turned", "series", "t"),
     r"cannot share one array. Given: 't' with .*'turned' with .*To mend it: "),
    (MemoryBudgetError, lambda s: windowed(s).loader(memory="1KiB", output="numpy"),
     r"memory is too small.*Given: memory=1024 bytes. Allowed: at least \d+ bytes.*To mend it: "),
    (OptionError, lambda s: s.loader(output="numpy"),
     r"the windows are not set. To mend it: call .window"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "attempt", "words"), REFUSALS)
def test_refusals(kind: type[XloaderError], attempt: Attempt, words: str) -> None:
    """Every refusal has its own error class, which is also a fitting builtin error.

    It reads labels at most: they must be known to refuse a missing one.
    """
    numeric = make_dataset()[["t", "turned", "series"]]
    chunks = {"t": (5, 4, 3), "turned": (4, 5, 3), "series": (7,)}
    store = CountingStore(write_store(numeric, chunks))
    for source in (make_dataset(), store):
        with pytest.raises(kind, match=words) as caught:
            attempt(xloader.open(source))
        assert type(caught.value) is kind
        assert isinstance(caught.value, KeyError if kind is UnknownNameError else ValueError)
        assert str(caught.value).startswith(caught.value.what)
        assert "\n" not in str(caught.value)
    assert {key.split("/")[0] for key in store.reads} <= {"time", "lat"}


@pytest.mark.parametrize("name", ["words", "dates"])
def test_what_holds_no_numbers_is_refused(name: str) -> None:
    """A variable without numbers is refused if it is named, and otherwise left out."""
    dataset = make_dataset()
    pattern = rf"{name}.*Given: .*Allowed: .*To mend it: "
    with pytest.raises(UnsupportedDataError, match=pattern):
        xloader.open(dataset, variables=["t", name])
    others = xloader.open(dataset).window(time=2)
    assert name not in others.fields


@pytest.mark.parametrize("filters", [None, [{"id": "vlen-utf8"}], [{"id": "pickle"}]])
def test_a_store_of_objects_is_refused(tmp_path: Path, filters: Any) -> None:
    """Arrays of objects are refused, because decoding them may run code from the store."""
    write_store(make_dataset()[["t"]], {"t": (5, 4, 3)}, tmp_path / "old.zarr", zarr_format=2)
    metadata = tmp_path / "old.zarr" / "t" / ".zarray"
    changed = json.loads(metadata.read_text()) | {"dtype": "|O", "filters": filters}
    metadata.write_text(json.dumps(changed | {"fill_value": None}))
    pattern = r"Given: .*. To mend it: "
    with pytest.raises(UnsupportedDataError, match=pattern) as caught:
        xloader.open(tmp_path / "old.zarr", variables=["t"])
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("name", ["none.zarr", "none.nc", "folder/none.zarr"])
def test_a_store_that_is_not_there(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for source in (path, str(path)):
        with pytest.raises(SourceNotFoundError, match=r"Given: .*none.*To mend it: ") as caught:
            xloader.open(source)
        assert isinstance(caught.value, FileNotFoundError)
    assert not path.exists()


@pytest.mark.parametrize("num_points", [1, 30, 30_000])
def test_too_little_memory_is_told_in_a_unit_that_fits(num_points: int) -> None:
    """The error names a sufficient memory in bytes, KiB or MiB, whichever fits."""
    ds = xr.Dataset({"t": (("time", "x"), np.zeros((24, num_points), np.float32))})
    samples = xloader.open(write_store(ds, {"t": (4, num_points)})).window(time=2)
    with pytest.raises(MemoryBudgetError) as caught:
        samples.loader(batch_size=4, output="numpy", memory=1)
    told = str(caught.value)
    unit = {1: "B", 30: "KiB", 30_000: "MiB"}[num_points]
    assert re.search(rf"Allowed: at least \d+ bytes( \([1-9][\d.]* {unit}\))?\.", told)
    found = re.search(rf'To mend it: pass memory="(\d+{unit})", or use a smaller batch', told)
    assert found is not None
    with samples.loader(batch_size=4, output="numpy", memory=found[1]) as loader:
        assert sum(len(batch.ids) for batch in loader) == 12


MIXED = pytest.mark.filterwarnings(
    "ignore::xloader.errors.PlanWarning",
    "ignore::xloader.errors.EpochWarning",
)


@MIXED
@given(case=cases())
def test_the_memory_that_a_refusal_names_will_do(case: Case) -> None:
    """The named memory suffices for a whole epoch on every rank, and 5 % less is refused."""
    with pytest.raises(MemoryBudgetError) as caught:
        case.loader(memory=1)
    least = caught.value.minimum_nbytes
    with pytest.raises(MemoryBudgetError) as again:
        case.loader(memory=least * 95 // 100)
    assert again.value.minimum_nbytes == least
    assert f"{least} bytes" in str(again.value)
    for rank in range(case.world_size):
        with case.loader(rank, memory=least) as loader:
            assert sum(1 for _ in loader) == len(loader)
            assert loader.report().peak_nbytes <= least
