"""Results as tables and as JSON."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import click
import click.testing
import numpy as np
import xarray as xr

from xloader.cli.endings import print_json, to_json
from xloader.cli.job_commands import make_stats_table
from xloader.mosaic.merged_boxes import MosaicSummary


def stats_of(**variables: xr.DataArray) -> xr.Dataset:
    return xr.Dataset(variables)


def test_every_channel_month_and_lead_has_a_row():
    values = np.arange(2 * 2 * 2 * 3, dtype=float).reshape(3, 2, 2, 2)
    levels = xr.DataArray(
        values,
        {
            "stat": ["count", "mean", "q0.5"],
            "month": [1, 12],
            "lead": np.array([6, 48], "m8[h]").astype("m8[ns]"),
            "level": [500.0, 850.0],
        },
        ("stat", "month", "lead", "level"),
        attrs={"units": "m"},
    )
    flat = xr.DataArray([1234567.0, 0.1, np.nan], {"stat": ["count", "mean", "q0.5"]})
    lines = make_stats_table(stats_of(z=levels, mask=flat)).splitlines()
    assert lines[0].split() == [
        "variable",
        "month",
        "lead",
        "level",
        "units",
        "count",
        "mean",
        "q0.5",
    ]
    assert len(lines) == 1 + 8 + 1
    assert " ".join(lines[1].split()) == "z 1 6h 500 m 0 8 16"
    assert " ".join(lines[8].split()) == "z 12 2D 850 m 7 15 23"
    assert " ".join(lines[9].split()) == "mask 1,234,567 0.1 nan"
    assert len({len(line) for line in lines}) == 1


def test_a_dimension_without_labels_counts_its_elements():
    cells = xr.DataArray(np.ones((1, 2)), {"stat": ["mean"]}, ("stat", "cell"))
    lines = make_stats_table(stats_of(t=cells)).splitlines()
    assert [line.split() for line in lines[1:]] == [["t", "0", "1"], ["t", "1", "1"]]


def test_json_has_everything_and_no_nan():
    held = xr.DataArray(
        [2.0, np.nan],
        {"stat": ["count", "mean"], "run": np.datetime64("2001-01-01", "ns")},
        "stat",
    )
    told = {
        "stats": stats_of(t2m=held).assign_attrs(size=np.int64(3)),
        "summary": MosaicSummary(4, 3, 100, 20, 2),
        "path": Path("a", "b.nc"),
        "day": dt.datetime(2001, 2, 3),
        "lead": np.timedelta64(6, "h"),
        "parts": (1, np.float32(np.inf), True, None),
    }

    @click.command()
    def command():
        print_json(told)

    read = json.loads(click.testing.CliRunner().invoke(command).stdout)
    assert read["stats"]["data_vars"]["t2m"]["data"] == [2.0, None]
    assert read["stats"]["coords"]["run"]["data"].startswith("2001-01-01")
    assert read["stats"]["attrs"] == {"size": 3}
    assert read["summary"]["num_cells"] == 100
    assert read["path"] == "a/b.nc"
    assert read["day"] == "2001-02-03T00:00:00"
    assert read["lead"].startswith("6")
    assert read["parts"] == [1, None, True, None]


def test_datasets_read_back_as_xarray_writes_them():
    stats = stats_of(t2m=xr.DataArray([[1.0, 2.0]], {"stat": ["mean"]}, ("stat", "x")))
    xr.testing.assert_identical(xr.Dataset.from_dict(to_json(stats)), stats)
