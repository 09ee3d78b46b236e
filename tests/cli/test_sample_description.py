"""The options that describe samples make the samples that the verbs make."""

from __future__ import annotations

import datetime as dt
import shlex

import hypothesis
import numpy as np
import pytest
import xarray as xr
from hypothesis import strategies as st

import xloader
from xloader.cli import option_texts
from xloader.cli.sample_description import SampleCommand, SampleDescription, takes_samples
from xloader.errors import OptionError, UnknownNameError

STEPS = 240


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    time = np.arange("2001-01-01", "2001-03-02", np.timedelta64(6, "h"), "M8[ns]")
    rng = np.random.default_rng(0)
    shape = (len(time), 3, 9, 12)
    ds = xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), rng.normal(size=(STEPS, 9, 12)).astype("f4")),
            "z": (("time", "level", "lat", "lon"), rng.normal(size=shape).astype("f4")),
            "sst": (("time", "lat", "lon"), rng.normal(size=(STEPS, 9, 12)).astype("f4")),
            "rain": (("time", "station"), rng.normal(size=(STEPS, 3)).astype("f4")),
        },
        {
            "time": time,
            "level": [200, 500, 850],
            "lat": np.linspace(80, -80, 9),
            "lon": np.arange(0.0, 360.0, 30.0),
            "station": ["Bern", "Kiel", "Oslo"],
        },
    )
    ds["sst"][:, :2] = np.nan
    path = tmp_path_factory.mktemp("stores") / "era5.zarr"
    ds.to_zarr(path, zarr_format=2, consolidated=False)
    return str(path)


def described(store: str, line: str) -> SampleDescription:
    """The description that a command with these options takes."""
    command = SampleCommand("test", callback=lambda description: description)
    return takes_samples(command).main([store, *shlex.split(line)], standalone_mode=False)


@pytest.mark.parametrize(
    ("line", "verbs"),
    [
        ("", lambda s: s),
        ("--sel time=2001-01", lambda s: s.sel(time="2001-01")),
        (
            "--sel lat=+40:-40,level=+500,+850",
            lambda s: s.sel(lat=slice(40, -40), level=[500, 850]),
        ),
        (
            "--sel time=2001-01:2001-02-10,level=500 --sel lat=60:-60",
            lambda s: s.sel(time=slice("2001-01", "2001-02-10"), level=500, lat=slice(60, -60)),
        ),
        (
            "--sel time=2001-01-03T06:00:2001-02-03T12:00:00",
            lambda s: s.sel(time=slice("2001-01-03T06:00", "2001-02-03T12:00:00")),
        ),
        ("--sel level=200,850", lambda s: s.sel(level=[200, 850])),
        ("--sel level=500,", lambda s: s.sel(level=[500])),
        ("--sel station=Bern,Oslo", lambda s: s.sel(station=["Bern", "Oslo"])),
        ("--sel time=:2001-01-15", lambda s: s.sel(time=slice(None, "2001-01-15"))),
        ("--isel time=10:100:2,level=-1", lambda s: s.isel(time=slice(10, 100, 2), level=-1)),
        (
            "--sel time=2001-02 --isel time=4:,level=0,2",
            lambda s: s.sel(time="2001-02").isel(time=slice(4, None), level=[0, 2]),
        ),
        (
            "--window time=3D --window lat=4,lon=6 --stride time=6h,lat=2,lon=3",
            lambda s: s.window(time="3D", lat=4, lon=6, stride={"time": "6h", "lat": 2, "lon": 3}),
        ),
        (
            "--variables t2m --window 3 --stride 1 --dilation time=2",
            lambda s: s.window(3, stride=1, dilation={"time": 2}),
        ),
        ("--window time=4 --gaps allow", lambda s: s.window(time=4, gaps="allow")),
        ("--window time=4 --gaps time=raise", lambda s: s.window(time=4, gaps={"time": "raise"})),
        (
            "--window time=1,lat=3,lon=4 --wrap lon --pad lat=edge",
            lambda s: s.window(time=1, lat=3, lon=4, wrap=("lon",), pad={"lat": "edge"}),
        ),
        ("--window lat=3 --pad lat=0.5", lambda s: s.window(lat=3, pad={"lat": 0.5})),
        (
            "--window time=6 --inputs t2m@time=0:2 --targets t2m@time=5 --field p=sst@time=0,2,4",
            lambda s: (
                s.window(time=6)
                .inputs("t2m", time=slice(0, 2))
                .targets("t2m", time=5)
                .field("p", "sst", time=[0, 2, 4])
            ),
        ),
        (
            "--window time=4,lat=5 --inputs t2m@time=0h:12h,lat=0:3 --targets t2m@time=+10D,lat=-1",
            lambda s: (
                s.window(time=4, lat=5)
                .inputs("t2m", time=slice("0h", "12h"), lat=slice(0, 3))
                .targets("t2m", time="+10D", lat=-1)
            ),
        ),
        (
            "--window time=4,lat=1 --inputs sst --dropna --at-least 0.5",
            lambda s: s.window(time=4, lat=1).inputs("sst").dropna(at_least=0.5),
        ),
    ],
)
def test_options_are_the_verbs(store, line, verbs):
    given = described(store, line)
    expected = verbs(xloader.open(store, variables=given.variable_names or None))
    assert given.open().recipe == expected.recipe
    assert given.has_windows == (expected.recipe.windows is not None)


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("--sel 1979:2017", OptionError, "--sel has a value without a name"),
        ("--sel time=2001 --sel time=2002", OptionError, "names something twice"),
        ("--sel level=high", OptionError, "a label is not a number"),
        ("--sel level=:700hPa", OptionError, "a label is not a number"),
        ("--sel levle=500", UnknownNameError, "did you mean 'level'"),
        ("--isel time=0:1:2:3", OptionError, "a slice cannot be read"),
        ("--isel time=0:9:x", OptionError, "a slice cannot be read"),
        ("--isel time=0:9,20", OptionError, "a slice cannot be read"),
        ("--isel time=now", OptionError, "not made of positions"),
        ("--window time=2,4", OptionError, "--window cannot be read.*time=2,4"),
        ("--window tiem=2", UnknownNameError, "did you mean 'time'"),
        ("--stride time=2", OptionError, "no dimension"),
        ("--inputs t2m", OptionError, "window"),
        ("--window time=2 --inputs t2n", UnknownNameError, "did you mean 't2m'"),
        ("--window time=2 --inputs @time=0", OptionError, "--inputs cannot be read"),
        ("--window time=2 --inputs t2m@", OptionError, "--inputs cannot be read"),
        ("--window time=2 --inputs past=t2m", OptionError, "--inputs cannot be read"),
        ("--window time=2 --field t2m@time=0", OptionError, "--field has no name"),
        ("--window time=2 --at-least 0.5", OptionError, "belongs to --dropna"),
        ("--variables t2n", UnknownNameError, "did you mean 't2m'"),
    ],
)
def test_a_wrong_description_is_a_named_error(store, line, kind, words):
    with pytest.raises(kind, match=words):
        described(store, line).open()


def test_values_of_storage_options_stay_out_of_errors():
    for text in ("key={secret", "secret"):
        with pytest.raises(OptionError) as caught:
            option_texts.read_storage("--target-option", [text])
        assert "secret" not in str(caught.value)


def test_group_and_storage_options_reach_the_store(monkeypatch):
    asked = {}

    def record(source, **options):
        asked.update(options, source=source)
        raise OptionError("stop here")

    monkeypatch.setattr("xloader.cli.sample_description.open_samples", record)
    described = SampleDescription(
        "s3://bucket/x.zarr", group="land", storage_option=("anon=true", "profile=007")
    )
    with pytest.raises(OptionError, match="stop here"):
        described.open()
    assert asked["source"] == "s3://bucket/x.zarr"
    assert asked["group"] == "land"
    assert asked["storage_options"] == {"anon": True, "profile": "007"}


@hypothesis.given(
    st.tuples(*[st.none() | st.integers(-50, 50)] * 2, st.none() | st.integers(1, 9)),
)
def test_a_slice_is_read_as_python_writes_it(parts):
    begin, end, step = ("" if part is None else str(part) for part in parts)
    text = f"{begin}:{end}" + (f":{step}" if step else "")
    assert option_texts.read_values((text,)) == slice(*parts)


@hypothesis.given(
    *(st.datetimes(dt.datetime(1000, 1, 1)),) * 2,
    st.sampled_from(["%Y", "%Y-%m", "%Y-%m-%d", "%Y-%m-%dT%H"]),
)
def test_times_of_day_do_not_cut_a_slice(begin, end, short):
    texts = [begin.isoformat(), end.strftime(short), end.isoformat(" ")]
    for first in texts:
        for last in texts:
            found = option_texts.read_values((f"{first}:{last}",), str)
            assert found == slice(first, last), (first, last)


@pytest.mark.parametrize("text", ["8/8", "3", "-1/4", "1/0", "a/b", "1/2/3"])
def test_a_part_that_there_is_not_is_refused(text):
    with pytest.raises(OptionError, match="from 0"):
        option_texts.read_part(text)
