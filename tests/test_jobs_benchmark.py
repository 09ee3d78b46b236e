"""The benchmark of jobs runs and counts correctly, and the one that kills jobs sees differences."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from benchmarks import chunking, job_runs, job_tables, jobs, kills, stats_contest, turns
from benchmarks.job_runs import COUNT, JobRun
from benchmarks.layouts import StoreSpec
from benchmarks.stats_contest import DASK, LOADER, StatsFigures
from benchmarks.stores import ensure_grown, ensure_stores

ROOT = Path(__file__).resolve().parents[1]
SPEC = StoreSpec("labels", (4, 90, 90), num_steps=12, variables=("t2m", "u10"), has_labels=True)
ALL_TIME = dataclasses.replace(SPEC, name="all-time", chunks=(12, 90, 90), has_labels=False)


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> dict[StoreSpec, Path]:
    return ensure_stores(tmp_path_factory.mktemp("stores"), [SPEC, ALL_TIME])


def play(runs, *told) -> list[JobRun]:
    """The figures of some turns."""
    assert next(runs) is None
    found = [runs.send(each) for each in told]
    runs.close()
    return found


# --- stores


@pytest.mark.parametrize("axis", [0, 1])
def test_a_grown_store_repeats_its_chunks_along_an_axis(paths, axis):
    grown, path = ensure_grown(paths[ALL_TIME].parent, ALL_TIME, 3, axis=axis)
    assert grown.shape[axis] == 3 * ALL_TIME.shape[axis]
    assert grown.num_chunks == 3 * ALL_TIME.num_chunks
    assert path.name == grown.folder_name
    repeats = [1, 1, 1]
    repeats[axis] = 3
    for name in ALL_TIME.variables:
        base = zarr.open_array(paths[ALL_TIME] / name, mode="r")[:]
        there = zarr.open_array(path / name, mode="r")[:]
        np.testing.assert_array_equal(there, np.tile(base, repeats))


# --- jobs


def test_statistics_read_each_chunk_once(paths):
    kinds = [job_runs.play_stats(paths[SPEC], SPEC, own) for own in stats_contest.WAYS.values()]
    for runs in (*kinds, job_runs.play_dask_stats(paths[SPEC], SPEC, 2)):
        timed, counted = play(runs, None, COUNT)
        assert timed.num_reads is None
        assert timed.seconds > 0
        assert counted.num_reads == SPEC.num_chunks


@pytest.mark.parametrize("by_dask", [False, True])
def test_copies_have_other_chunks_and_the_same_values(paths, tmp_path, by_dask):
    spec, target = ALL_TIME, tmp_path / "copy.zarr"
    chunks = {"time": 3, "lat": 180, "lon": 360}
    if by_dask:
        runs = job_runs.play_dask_copy(paths[spec], spec, target, chunks, 2)
    else:
        options = {"chunks": chunks, "memory": "64MiB"}
        runs = job_runs.play_materialize(paths[spec], spec, target, {"time": 1}, options)
    # The second turn finds the target of the first.
    first, second = play(runs, COUNT, COUNT)
    assert first.num_reads == second.num_reads >= spec.num_chunks
    for name in spec.variables:
        copied = zarr.open_array(target / name, mode="r")
        assert copied.chunks == (3, 180, 360)
        np.testing.assert_array_equal(copied[:], zarr.open_array(paths[spec] / name, mode="r")[:])


@pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")
def test_a_quick_run_prints_its_tables(tmp_path, monkeypatch, capsys):
    """Of patches alone, as whole maps take minutes."""
    pytest.importorskip("torch")
    (patches,) = (case for case in chunking.make_cases(is_quick=True) if case.name == "patches")
    monkeypatch.setattr(chunking, "make_cases", lambda is_quick: [patches])
    monkeypatch.setattr(turns, "PRELOADED", ())
    figures = tmp_path / "figures.json"
    line = ["jobs", "--quick", "--only", "chunks", "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*line, "--json", str(figures)])
    jobs.main()
    told = json.loads(figures.read_text("utf-8"))["chunks"]["patches"]
    before, after = told["before"], told["after"]
    assert after["amplification"] == pytest.approx(after["predicted"]["read_amplification"])
    assert after["chunks"] != before["chunks"]
    assert after["memory_nbytes"] <= before["memory_nbytes"]
    assert not told["copies"][0]["left_out"]
    assert patches.title in capsys.readouterr().out


# --- tables


def test_ratios_are_to_the_loader_and_to_dask():
    figures = StatsFigures(
        SPEC,
        {
            LOADER: [JobRun(1.0, 0)],
            "plain": [JobRun(2.0, 0), JobRun(1.25, 0)],
            DASK: [JobRun(5, 0)],
        },
        {"plain": SPEC.num_chunks, DASK: 2 * SPEC.num_chunks},
        {"3 quantiles": "not installed"},
    )
    told = figures.to_dict()["kinds"]
    assert told["plain"]["of_loader"] == pytest.approx(0.8)
    assert told["plain"]["times_dask"] == pytest.approx(4.0)
    assert told[DASK]["reads_of_a_chunk"] == 2.0
    table = job_tables.show_stats(figures)
    assert "| plain | 1.25 | 0.00 | 0.80 | 4.0 | 0 | 1.00 |" in table
    assert "not measured: not installed" in table


# --- kills


def test_a_digest_sees_each_file_and_each_value(tmp_path):
    folder = tmp_path / "a.zarr"
    (folder / "c").mkdir(parents=True)
    (folder / "c" / "0").write_bytes(b"chunk")
    found = [kills.digest(folder)]
    (folder / "c" / "0").write_bytes(b"chunK")
    found.append(kills.digest(folder))
    (folder / "c" / "0").rename(folder / "c" / "1")
    found.append(kills.digest(folder))
    for written in ("today", "tomorrow"):
        held = {"attributes": {"history": written, "title": "a"}}
        (folder / "zarr.json").write_text(json.dumps(held))
        found.append(kills.digest(folder))
    # The time of writing does not count.
    assert found.pop() == found[-1]
    for value in (1.0, 2.0):
        pytest.importorskip("h5netcdf")
        xr.Dataset({"t": ("x", [value])}).to_netcdf(tmp_path / f"{value}.nc", engine="h5netcdf")
        found.append(kills.digest(tmp_path / f"{value}.nc"))
    assert len(set(found)) == 6


@pytest.mark.parametrize("job", list(kills.JOBS))
def test_a_killed_job_ends_with_the_same_digest(job, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(kills, "MOST_KILLS", 1)
    assert kills.try_job(job, 1, 3, tmp_path) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 2
    assert "the same" in told[1]
