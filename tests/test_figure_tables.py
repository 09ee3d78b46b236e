"""Figures as tables of text, as JSON, and as flat numbers for trackers of experiments."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.loader.reports.report import Report
from xloader.planning.explain import Explanation
from xloader.show.cards import (
    Card,
    CardSection,
    CardTable,
    Drawing,
    Facts,
    Words,
    facts_text,
)
from xloader.show.json_values import flat_numbers, to_json_value
from xloader.testing import write_store


def samples_of(*names: str, num_steps: int = 48) -> Samples:
    """Make variables in chunks of four steps; each has more bytes than the one before."""
    sizes = {name: 4 + index for index, name in enumerate(names)}
    variables = {
        name: (("time", f"x{size}"), np.zeros((num_steps, size), np.float32))
        for name, size in sizes.items()
    }
    chunks = {name: (4, size) for name, size in sizes.items()}
    return xloader.open(write_store(xr.Dataset(variables), chunks)).window(time=1)


def run(samples: Samples, num_batches: int = 1000, **options: Any) -> tuple[Explanation, Report]:
    with samples.loader(batch_size=8, output="numpy", **options) as loader:
        planned = loader.explain()
        for number, _ in enumerate(loader, 1):
            if number == num_batches:
                break
        return planned, loader.report()


def test_a_report_shows_the_plan_beside_the_measurements() -> None:
    planned, report = run(samples_of("a", "b"))
    assert report.expected is not None
    assert report.expected.variables == planned.variables
    (title, rows), (variables_title, variables) = report._sections()
    assert title == "planned beside measured"
    assert rows[0] == ["", "planned", "measured"]
    told = {name: cells for name, *cells in rows}
    assert told["samples"] == ["48", "48"]
    assert told["reads"] == ["24", "24"]
    assert told["reads per chunk"] == ["1.000", "1.000"]
    assert variables_title == "variables"
    assert variables[1:] == [
        ["a", "12", "12", "768 B", "768 B"],
        ["b", "12", "12", "960 B", "960 B"],
    ]
    text = str(report)
    # What the table says is not said again in the rows.
    assert "24 chunks" not in text
    for row in (*rows, *variables):
        assert any(all(cell in line for cell in row) for line in text.splitlines())


def test_an_epoch_that_was_broken_off_says_so() -> None:
    _, report = run(samples_of("a"), num_batches=2)
    ((title, rows),) = report._sections()
    assert title == ("planned beside measured: the plan is for 6 batches, 2 were delivered so far")
    assert rows[1] == ["samples", "48", "16"]
    assert title in str(report)


def test_a_single_variable_has_no_table() -> None:
    planned, _ = run(samples_of("a"))
    assert planned._sections() == []


def test_of_many_variables_those_with_most_bytes_are_shown() -> None:
    names = [f"v{number:02}" for number in range(20)]
    planned, report = run(samples_of(*names, num_steps=8))
    ((_, rows),) = planned._sections()
    assert [row[0] for row in rows] == ["variable", *names[:7:-1], "and 8 more"]
    assert {len(row) for row in rows} == {4}
    assert report._sections()[1][1][-1] == ["and 8 more", "", "", "", ""]


def test_speeds_are_amounts_over_seconds() -> None:
    _, report = run(samples_of("a", "b"))
    seconds = report.seconds
    assert report.requests_per_second == pytest.approx(report.num_requests / seconds)
    assert report.read_nbytes_per_second == pytest.approx(1728 / seconds)
    assert report.delivered_nbytes_per_second == pytest.approx(1728 / seconds)
    assert report.cores_busy == pytest.approx(report.cpu_seconds / seconds)
    assert report.cpu_seconds > 0
    text = str(report)
    assert f"{report.num_requests:,} requests, {report.requests_per_second:,.0f} per second" in text
    assert f"{report.cores_busy:.1f} of {report.num_cores} busy" in text


def test_json_holds_plan_and_measurements() -> None:
    planned, report = run(samples_of("a", "b"))
    told = json.loads(report.to_json(with_plan=True))
    assert list(told) == ["planned", "measured"]
    assert told["measured"] == report.to_dict() == json.loads(report.to_json())
    assert told["planned"]["num_reads"] == told["measured"]["num_reads"] == 24
    assert told["measured"]["variables"]["b"] == {
        "num_chunks": 12, "num_reads": 12, "read_nbytes": 960, "read_amplification": 1.0,
    }  # fmt: skip
    assert told["measured"]["headroom"] == report.headroom
    assert json.loads(planned.to_json()) == planned.to_dict()
    assert "\n" not in report.to_json(indent=None)
    assert not [key for key in report.to_dict() if key.startswith("_")]
    assert pickle.loads(pickle.dumps(report)).to_dict() == report.to_dict()


def test_metrics_are_flat_finite_numbers() -> None:
    planned, report = run(samples_of("a", "b"))
    found = report.metrics()
    assert found["xloader/num_reads"] == 24.0
    assert found["xloader/variables/b/read_nbytes"] == 960.0
    assert found["xloader/busy_seconds/decode"] == report.busy_seconds["decode"]
    assert found["xloader/requests_per_second"] == report.requests_per_second
    for value in (*found.values(), *planned.metrics().values()):
        assert type(value) is float
        assert math.isfinite(value)
    assert not {"xloader/bottleneck", "xloader/is_exact"} & set(found)
    assert planned.metrics("run/plan")["run/plan/variables/a/num_reads"] == 12.0
    plain = report.metrics("xl", separator="_")
    assert plain["xl_variables_a_num_reads"] == 12.0
    assert "num_reads" in report.metrics(prefix="")


def test_names_are_cleaned_where_slashes_are_not_allowed() -> None:
    values = {"2m-t": {"n": 1}, "2m.t": {"n": 2}, "no": math.nan, "far": math.inf}
    assert flat_numbers(values, "x", "/") == {"x/2m-t/n": 1.0, "x/2m.t/n": 2.0}
    assert flat_numbers(values, "x", "_") == {"x_2m_t_n": 1.0, "x_2m_t_n_2": 2.0}


def test_values_of_numpy_become_plain() -> None:
    values = {"n": np.int64(3), "t": (1, np.float32(0.5)), "nan": np.float64("nan")}
    assert to_json_value(values) == {"n": 3, "t": [1, 0.5], "nan": None}
    assert {type(held) for held in to_json_value(values)["t"]} == {int, float}


def test_the_text_of_a_card_leaves_out_drawings_and_closed_sections() -> None:
    table = CardTable(["", "planned"], [["reads", "7"]])
    parts = [
        Facts([("a", "1"), ("name", "two\nlines")]),
        Drawing("<svg></svg>", "a caption"),
        Words(["One.", "Two."]),
        CardSection("open", [table], summary="4 batches"),
        CardSection("closed", [table], is_open=False),
        CardSection("drawn", [Drawing("<svg></svg>", "")]),
    ]
    assert Card("Title", "a summary", parts).to_text().splitlines() == [
        "Title: a summary",
        "  a     1",
        r"  name  two\nlines",
        "  One.",
        "  Two.",
        "",
        "  open: 4 batches",
        "            planned",
        "    reads         7",
    ]
    assert "<thead>" not in CardTable((), [["a", "b"]]).to_html()
    assert CardTable((), [["a", "b"]]).to_text() == "a   b"
    assert facts_text("A", [("n", "1"), ("num", "2")]) == "<A>\n    n    1\n    num  2"
    assert facts_text("A", []) == "<A>"
