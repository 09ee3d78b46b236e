"""The benchmarks run, count correctly, and show missed targets as missed."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

import xloader
from benchmarks import (
    masks,
    ours,
    page,
    processes,
    reference,
    table,
)
from benchmarks.layouts import LAYOUTS, Layout, StoreSpec, Target
from benchmarks.measure import Speed, Usage
from benchmarks.ours import Epoch, Plan
from benchmarks.results import Result
from benchmarks.rivals import sequential, shuffled
from benchmarks.stores import ensure_stores

ROOT = Path(__file__).resolve().parents[1]
TILES = StoreSpec("tiles", (2, 90, 90), num_steps=4, variables=("t2m", "u10"))
SHARDS = dataclasses.replace(TILES, name="shards", shards=(4, 180, 180))
PACKED = dataclasses.replace(TILES, name="packed", is_packed=True)
PATCHES = {"time": 1, "lat": 60, "lon": 60}


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> dict[StoreSpec, Path]:
    return ensure_stores(tmp_path_factory.mktemp("stores"), [TILES, SHARDS, PACKED])


def layout_of(spec: StoreSpec, **changes: object) -> Layout:
    layout = Layout("patches", "patches", spec, PATCHES, batch_size=4, memory_share=0.6)
    return dataclasses.replace(layout, **changes)


# --- the whole program


def test_a_quick_run_prints_its_tables(tmp_path):
    pytest.importorskip("torch")
    before = page.PAGE.read_bytes()
    line = [sys.executable, "-m", "benchmarks", "--quick", "--only", "steps1"]
    run = subprocess.run(
        [*line, "--folder", str(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    rows = [line for line in run.stdout.splitlines() if line.startswith("| time-chunked")]
    ratios, figures, in_turn = ([cell.strip() for cell in row.split("|")[1:-1]] for row in rows)
    num_targets = len(LAYOUTS[0].targets) + 2
    assert f"of {num_targets} held" in ratios[-1]
    assert float(ratios[1]) > 0
    assert ratios[4].endswith(" x")
    # 4 variables in 12 chunks along time make 48 reads; there are 192 samples.
    assert figures[4:6] == ["48", "1.000"]
    assert len(in_turn) == 2 + len(sequential.WAYS)
    assert page.PAGE.read_bytes() == before


# --- stores


def test_stores_are_made_once_and_as_said(paths):
    for spec, path in paths.items():
        array = zarr.open_array(path / "u10", mode="r")
        assert (array.shape, array.chunks, array.shards) == (spec.shape, spec.chunks, spec.shards)
    begun = paths[TILES].stat().st_mtime_ns
    ensure_stores(paths[TILES].parent, [TILES])
    assert paths[TILES].stat().st_mtime_ns == begun
    with xr.open_zarr(paths[PACKED], consolidated=False) as packed:
        exact = xr.open_zarr(paths[TILES], consolidated=False)
        np.testing.assert_allclose(packed["t2m"], exact["t2m"], atol=1e-6)


# --- the reference


@pytest.mark.parametrize("spec", [TILES, SHARDS, PACKED], ids=lambda spec: spec.name)
def test_the_reference_decodes_every_chunk(paths, spec):
    chunks = reference.find_chunks(paths[spec], spec.variables)
    assert len(chunks) == 2 * 2 * 2 * 4
    decode = reference.find_decoder(paths[spec] / "t2m")
    ring = np.zeros(spec.nbytes, np.uint8)
    num_decoded = reference.decode_all(chunks, decode, ring, spec.chunk_nbytes, num_cores=2)
    assert num_decoded == len(chunks)
    # The ring has room for all chunks, so it holds every value, in any order.
    ds = xr.open_zarr(paths[spec], consolidated=False, mask_and_scale=False)
    expected = np.sort(np.concatenate([ds[name].values.ravel() for name in spec.variables]))
    np.testing.assert_array_equal(np.sort(ring.view(expected.dtype)), expected)


@pytest.mark.parametrize(
    ("spec", "window", "shape"),
    [
        (TILES, {"time": 1, "lat": 30, "lon": 30}, (1, 3, 3, 1, 30, 30)),
        (PACKED, {"time": 1, "lat": 30, "lon": 30}, (1, 3, 3, 1, 30, 30)),
        # Of a window larger than a chunk, a piece is the part in one chunk.
        (TILES, {"time": 3}, (10, 1, 1, 2, 90, 90)),
    ],
)
def test_the_reference_copies_every_byte(spec, window, shape):
    layout = layout_of(spec, window=window, is_as_stored=spec.is_packed)
    ring = np.arange(20 * 90 * 90).astype(layout.dtype).view(np.uint8)
    pieces = reference.find_pieces(layout, ring)
    batches = reference.make_batches(layout, pieces, num_batches=len(pieces) // shape[0])
    assert batches[0].shape == shape
    num_cores = min(len(batches), 2)
    reference.copy_pieces(pieces, batches, nbytes=ring.nbytes, num_cores=num_cores)
    copied = np.concatenate(batches)
    assert copied.dtype == pieces.dtype == layout.dtype
    np.testing.assert_array_equal(np.sort(copied, axis=None), np.sort(ring.view(layout.dtype)))


# --- xloader and others


@pytest.mark.parametrize("is_as_stored", [False, True])
def test_an_epoch_of_ours_is_whole(paths, is_as_stored):
    spec = PACKED if is_as_stored else TILES
    layout = layout_of(spec, memory_share=1.0, is_as_stored=is_as_stored)
    play = ours.play(layout, str(paths[spec]))
    plan, epoch = next(play), next(play)
    play.close()
    assert (plan.num_reads, epoch.num_reads) == (32, 32)
    assert epoch.delivered_nbytes == layout.delivered_nbytes
    assert 0 < epoch.first_seconds <= epoch.used.seconds


@pytest.mark.parametrize("way", list(shuffled.WAYS))
def test_others_make_the_same_batches(paths, way):
    pytest.importorskip("torch")
    if way == "xbatcher":
        pytest.importorskip("xbatcher")
    layout = layout_of(TILES)
    ds = shuffled.open_dataset(str(paths[TILES]), layout, with_dask=way == "dask")
    assert sum(shuffled.WAYS[way](layout, ds)()) == layout.delivered_nbytes


@pytest.mark.parametrize(("spec", "num_chunks"), [(TILES, 3), (TILES, 100), (SHARDS, 1)])
def test_parts_cover_a_variable_once(spec, num_chunks):
    seen = np.zeros(spec.shape, np.int64)
    for part in sequential.cut_parts(spec, num_chunks):
        seen[part] += 1
    assert (seen == 1).all()


# --- results


def result_of(*targets: Target, **changes: object) -> Result:
    plan = Plan(0.05, 100, 1 << 30, 1 << 29, 4, 32)
    used = Usage(seconds=2.0, cpu_seconds=3.0, num_faults=0)
    epoch = Epoch(used, 0.1, 1000, 4 * 10**9, 32, 1.0, 2.0, 2.0, 1 << 20)
    slower = dataclasses.replace(epoch, used=dataclasses.replace(used, seconds=4.0))
    result = Result(layout_of(TILES, targets=targets), plan, slower, (slower, epoch))
    return dataclasses.replace(result, **changes)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1.8, "held: reference 0.9 of 0.9"),
        (1.6, "missed: reference 0.8 of 0.9"),
        (None, "not measured: reference"),
    ],
)
def test_a_target_is_held_or_missed(limit, expected):
    result = result_of(Target("reference", 0.9), limit_seconds=limit)
    assert str(result.verdicts[0]) == expected
    row = table.show_ratios([result]).splitlines()[-1]
    if limit == 1.8:
        assert "3 of 3 held |" in row
    else:
        assert f"2 of 3 held; {expected} |" in row


def test_ratios_are_ours_over_theirs():
    others = {"xbatcher": Speed(10**9, 10.0), "dask": "not installed"}
    in_turn = {"zarrs": Speed(10**9, 1.0), "tensorstore": Speed(2 * 10**9, 1.0)}
    result = result_of(shuffled=others, sequential=in_turn)
    assert result.delivered.gb_per_second == 2.0
    assert result.figures["xbatcher"] == pytest.approx(20.0)
    decoded = 32 * TILES.chunk_nbytes / 2.0 / 1e9
    assert result.figures["sequential"] == pytest.approx(decoded / 2.0)
    row = table.show_ratios([result]).splitlines()[-1]
    assert "20 x" in row
    assert "x tensorstore" in row
    assert "not installed" in row


def test_memory_and_plan_are_held_to_what_is_allowed():
    result = result_of()
    assert result.allowed_nbytes == int(1.1 * 2**30) + 32 * 2**20
    assert result.figures["plan"] == pytest.approx((0.05 + 100e-6) / 0.05)
    over = dataclasses.replace(result.best, peak_nbytes=result.allowed_nbytes + 1)
    verdicts = dataclasses.replace(result, epochs=(over,)).verdicts
    assert [(v.target.figure, v.is_held) for v in verdicts] == [("memory", False), ("plan", True)]


# --- the page


def test_a_run_is_written_between_the_markers_and_beside_the_page(tmp_path):
    written = page.write_between(f"a{page.BEGIN}x{page.END}b", "new")
    assert written == f"a{page.BEGIN}\n\nnew\n\n{page.END}b"
    page.write_between(page.PAGE.read_text("utf-8"), "new")
    for broken in ("", page.BEGIN, page.END + page.BEGIN, 2 * (page.BEGIN + page.END)):
        with pytest.raises(ValueError, match="each once"):
            page.write_between(broken, "new")
    tables = page.make_tables([result_of()], [])
    made = page.make_page("about", tables["speeds"])
    assert page.BEGIN + "\n\n`python -m benchmarks`" in page.PAGE.read_text("utf-8")
    assert made.splitlines()[2] in page.PAGE.read_text("utf-8")
    page.write_tables(tables, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} < {
        path.name for path in page.TABLES.iterdir()
    }
    for path in tmp_path.iterdir():
        head, *_ = path.read_text("utf-8").splitlines()
        assert (page.TABLES / path.name).read_text("utf-8").splitlines()[0] == head


# --- worker processes


def test_processes_and_threads_are_compared(paths, monkeypatch):
    monkeypatch.setattr(processes, "WAYS", {"threads": 0, "processes=1": 1})
    monkeypatch.setattr(processes, "NUM_TURNS", 1)
    monkeypatch.setattr(processes, "HELD_SECONDS", 0.001)
    samples = xloader.open(paths[TILES]).window(PATCHES)
    options = {"batch_size": 4, "prefetch": 2, "output": "numpy"}
    for compare in (processes.compare_loops, processes.compare_transforms):
        rows = compare(samples, options)[2:]
        assert [row.split("|")[1].strip() for row in rows] == ["threads", "processes=1"]
        assert all(float(row.split("|")[2]) > 0 for row in rows)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says how much memory a process had")
def test_a_mask_is_computed_once_and_planned_over(tmp_path, capsys):
    store, cache = tmp_path / "s.zarr", tmp_path / "masks"
    masks.write(store, 24)
    masks.compute(store, cache)
    masks.plan(store, cache)
    told = capsys.readouterr().out
    assert "of 931,399 samples: is_valid('sst', at_least=0.9)" in told
    assert "8 chunks read" in told
    assert "with 0 reads" in told
