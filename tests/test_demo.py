"""The demo: its waves, store, task and network, and a whole run."""

from __future__ import annotations

import dataclasses
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
import zarr

from tests.cli.json_shapes import SHAPES, check
from xloader.cli.endings import to_json
from xloader.jobs.valid.cache_files import default_cache_dir
from xloader.testing import waves as demo_store
from xloader.testing.waves import VARIABLE_ATTRS, WaveSpec, ensure_store, make_waves

SPEC = WaveSpec(num_steps=160, num_lats=18, num_lons=36, chunk_steps=32)
SMALL = WaveSpec(num_steps=40, num_lats=13, num_lons=24, chunk_steps=16, seed=3)


# ---------------------------------------------------------------- waves and store


def test_the_seed_makes_the_waves():
    first = make_waves(SMALL)
    xr.testing.assert_identical(first, make_waves(SMALL))
    other = make_waves(dataclasses.replace(SMALL, seed=4))
    assert np.abs(other["z500"] - first["z500"]).max() > 10


def test_waves_can_be_forecast_for_hours_and_not_for_months():
    height = make_waves(WaveSpec(num_steps=600, num_lats=19, num_lons=36))["z500"].values
    anomaly = height - height.mean(axis=0)

    def correlation(lag):
        now, then = anomaly[:-lag], anomaly[lag:]
        return (now * then).mean() / np.sqrt((now**2).mean() * (then**2).mean())

    assert correlation(1) > 0.8
    assert abs(correlation(240)) < 0.2


def test_wind_blows_along_the_height_lines():
    """Height rising eastwards gives a positive v in the north and a negative v in the south.

    This holds in the storm track of each hemisphere.
    """
    waves = make_waves(WaveSpec(num_steps=64, num_lats=37, num_lons=72))
    slope = waves["z500"].roll(lon=-1) - waves["z500"].roll(lon=1)
    for lat, sign in ((45.0, 1), (-45.0, -1)):
        pair = xr.corr(slope.sel(lat=lat), waves["v10"].sel(lat=lat))
        assert sign * pair > 0.8


def test_store_holds_the_waves_in_chunks_of_whole_maps_and_is_made_once(tmp_path, monkeypatch):
    path = tmp_path / "waves.zarr"
    ensure_store(path, SMALL)
    group = zarr.open_group(path, mode="r")
    assert group.metadata.zarr_format == 3
    for name in VARIABLE_ATTRS:
        assert (group[name].shape, group[name].chunks) == ((40, 13, 24), (16, 13, 24))
    with xr.open_zarr(path, consolidated=False, chunks=None) as dataset:
        xr.testing.assert_identical(dataset.load(), make_waves(SMALL))
        assert dataset["time"].values[4] == np.datetime64("2000-01-02T00:00")
        assert dataset["t2m"].attrs["units"] == "K"
    monkeypatch.setattr(demo_store, "make_waves", pytest.fail)
    ensure_store(path, SMALL)
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_cut_short_leaves_no_store(tmp_path, monkeypatch):
    def stop(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(xr.Dataset, "to_zarr", stop)
    with pytest.raises(KeyboardInterrupt):
        ensure_store(tmp_path / "waves.zarr", SMALL)
    assert list(tmp_path.iterdir()) == []


def test_two_runs_at_once_end_with_one_store(tmp_path, monkeypatch):
    path = tmp_path / "waves.zarr"

    def make_beside_another(spec):
        monkeypatch.setattr(demo_store, "make_waves", make_waves)
        ensure_store(path, spec)
        return make_waves(spec)

    monkeypatch.setattr(demo_store, "make_waves", make_beside_another)
    ensure_store(path, SMALL)
    assert list(tmp_path.iterdir()) == [path]


def test_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "xloader"


# ---------------------------------------------------------------- the demo


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    pytest.importorskip("torch")
    from xloader.demo.task import make_task

    path = tmp_path_factory.mktemp("demo") / "waves.zarr"
    ensure_store(path, SPEC)
    return make_task(str(path))


def test_the_plain_dataset_has_the_same_samples(task):
    from xloader.demo.task import PlainDataset

    plain = PlainDataset(task)
    assert (len(task.training), len(plain), len(task.held_out)) == (122, 122, 26)
    for index in (0, 57, 121):
        for ours, theirs in zip(task.training[index], plain[index], strict=True):
            assert theirs.dtype == np.float32
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    assert np.std([maps for maps, _ in (plain[i] for i in range(0, 122, 5))]) < 1.2
    assert task.weights.mean() == pytest.approx(1)


def test_a_network_starts_at_no_change_and_has_no_seam():
    torch = pytest.importorskip("torch")
    from xloader.demo.training import make_net

    state = torch.get_rng_state()
    net = make_net((2, 8, 16))
    assert torch.equal(torch.get_rng_state(), state)
    maps = torch.randn(3, 2, 8, 16)
    torch.testing.assert_close(net(maps), maps)
    torch.nn.init.normal_(net.last.weight)
    turned, expected = net(maps.roll(6, dims=-1)), net(maps).roll(6, dims=-1)
    torch.testing.assert_close(turned, expected, rtol=1e-4, atol=1e-4)


def test_a_course_says_when_a_loss_was_reached():
    pytest.importorskip("torch")
    from xloader.demo.training import Course

    course = Course(3, [0.0, 1.0, 2.0], [5.0, 3.0, 4.0])
    assert course.seconds_to(4.5) == 1.0
    assert course.seconds_to(1.0) == np.inf


def test_the_whole_demo_on_a_small_world(tmp_path, capfd, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    pytest.importorskip("tqdm")
    from xloader.demo.run import run_demo

    # Each step takes 10 ms, on any machine.
    ticks = SimpleNamespace(perf_counter=(0.01 * n for n in count()).__next__)
    monkeypatch.setattr("xloader.demo.training.time", ticks)
    picture = tmp_path / "new" / "demo.png"
    result = run_demo(spec=SPEC, cache=tmp_path / "cache", picture=picture, seconds=1.5)
    check(to_json(result), SHAPES["demo"])
    plain, in_turn, ours = result.courses.values()
    for course in (plain, in_turn, ours):
        assert course.num_batches > 0
        assert course.seconds[0] == 0
        assert course.seconds[-1] >= 1.5
        assert course.losses[0] == plain.losses[0]
    assert ours.losses[-1] < 0.7 * ours.losses[0]
    assert [*result.reads_per_chunk.values()] == pytest.approx([36, 1, 1], abs=0.5)
    assert max(result.seconds_to_same_loss.values()) <= 1.51
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    printed, bars = capfd.readouterr()
    assert "\r" not in printed + bars
    for words in ("The plan ", "32 maps per chunk", "reads per chunk", "Picture: "):
        assert words in printed
    for inside in ("cohort", "tile", "stream", "spread", "lane"):
        assert inside not in printed
