"""The picture of a report: its panels come from a short series that a loader keeps of an epoch."""

from __future__ import annotations

import pickle
import time

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.pictures import seen_ticks
from xloader.engine.tally import Tally
from xloader.errors import OptionError
from xloader.loader.loader import Loader
from xloader.loader.reports import bottleneck
from xloader.loader.reports.bottleneck import STAGES, SeriesRecorder
from xloader.testing import write_store

pytest.importorskip("matplotlib")


def loader_of(**options: object) -> Loader:
    ds = xr.Dataset({"t": (("time", "x"), np.ones((160, 50), "f4"))})
    samples = xloader.open(write_store(ds, {"t": (8, 50)})).window(time=2)
    return samples.loader(batch_size=4, output="numpy", memory="64MiB", **options)


@pytest.mark.parametrize("processes", [0, 1])
def test_the_series_ends_with_the_counts_of_the_report(processes):
    with loader_of(processes=processes) as loader:
        for _ in loader:
            pass
        report = loader.report()
    series = report._series
    assert len(series.seconds) == 21
    assert (np.diff(series.seconds) >= 0).all()
    for column in (series.wait_seconds, series.read_nbytes, series.delivered_nbytes):
        assert (np.diff(column) >= 0).all()
        assert column[0] == 0
    assert series.seconds[-1] == pytest.approx(report.seconds)
    assert series.delivered_nbytes[-1] == report.delivered_nbytes
    assert series.read_nbytes[-1] == report.read_nbytes
    assert series.wait_seconds[-1] == pytest.approx(report.wait_seconds)
    busy = dict(zip(STAGES, series.busy_seconds[-1], strict=True))
    assert busy == pytest.approx(report.busy_seconds)
    assert series.num_ready.max() <= 20


def test_the_panels_show_the_series():
    loader = loader_of()
    for _ in loader:
        pass
    report = loader.report()
    series = report._series
    stages, ready, waits, speeds = report.plot().axes
    names = [text.get_text() for text in stages.get_legend().get_texts()]
    assert names == [*STAGES, "threads"]
    (line,) = ready.lines
    assert line.get_xdata().tolist() == series.seconds[1:].tolist()
    assert line.get_ydata().tolist() == series.num_ready[1:].tolist()
    (stairs,) = waits.patches
    shares, edges = stairs.get_data()[:2]
    assert ((shares >= 0) & (shares <= 100)).all()
    # The parts of the epoch add up to the whole.
    read, delivered = speeds.patches
    for own, total in ((read, report.read_nbytes), (delivered, report.delivered_nbytes)):
        values, edges = own.get_data()[:2]
        assert (values * 1e9 * np.diff(edges)).sum() == pytest.approx(total)
    assert speeds.get_xlabel() == "seconds since the first batch was asked for"
    assert [own.get_ylabel() for own in (stages, ready, waits, speeds)] == [
        "threads\nat work",
        "batches\nready",
        "training\nwaits (%)",
        "GB/s",
    ]


def test_an_epoch_of_one_batch_is_drawn():
    ds = xr.Dataset({"t": (("time", "x"), np.ones((4, 50), "f4"))})
    samples = xloader.open(write_store(ds, {"t": (4, 50)})).window(time=2)
    with samples.loader(batch_size=4, output="numpy", threads=2) as loader:
        for _ in loader:
            pass
        picture = loader.report().plot()
    assert picture.get_suptitle().startswith("1 batch in ")
    stages, ready, waits, speeds = picture.axes
    picture.canvas.draw()
    # One point is no line, and so it is marked.
    (line,) = ready.lines
    assert len(line.get_xdata()) == 1
    assert line.get_marker() == "."
    assert waits.patches[0].get_data()[0].max() > 0
    assert all(own.get_data()[0].max() > 0 for own in speeds.patches)
    assert seen_ticks(stages.yaxis) == ["0", "1", "2"]


def test_a_long_epoch_keeps_few_points_at_equal_steps(monkeypatch):
    monkeypatch.setattr(bottleneck, "MOST_POINTS", 16)
    recorder, tally = SeriesRecorder(), Tally()
    asked = []
    for step in range(1, 1001):
        asked.append(tally.is_recorded)
        tally.read_nbytes = step
        recorder.add(step, step / 10, 2 * step, tally)
    assert len(recorder.points) < 16
    series = recorder.series(100.0, 2000, tally)
    steps = np.diff(series.read_nbytes)
    assert recorder.every == 64
    assert steps[:-1].tolist() == [64] * 15
    assert series.read_nbytes[-1] == 1000
    assert series.delivered_nbytes.tolist() == (2 * series.read_nbytes).tolist()
    # Ready batches are counted for the points alone.
    assert [step for step, is_asked in enumerate(asked, 1) if is_asked][-7:] == [
        *range(576, 1000, 64)
    ]


def test_ready_batches_are_counted_while_training_is_slow():
    with loader_of(prefetch=3) as loader:
        batches = iter(loader)
        next(batches)
        run = loader._run
        for _ in range(6000):
            if run._executor.figures()[0].num_ready >= 2:
                break
            time.sleep(0.01)
        next(batches)
        assert loader.report()._series.num_ready[-1] >= 1


def test_reports_without_batches_say_so_and_pickles_keep_the_series():
    loader = loader_of()
    batches = iter(loader)
    next(batches)
    report = loader.report()
    assert "_series" not in report.to_dict()
    assert pickle.loads(pickle.dumps(report)).plot().axes
    loader.close()
    empty = loader_of(shuffle=False)
    iter(empty)
    with pytest.raises(OptionError, match="nothing to draw"):
        empty.report().plot()
    empty.close()
