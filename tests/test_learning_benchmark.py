"""The benchmark of learning trains with every sample once an epoch, and pairs its seeds."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import xarray as xr

torch = pytest.importorskip("torch")

from benchmarks.learning.cases import Case, make_blocks, make_waves  # noqa: E402
from benchmarks.learning.orders import FULL, WAYS, Way, draw_orders  # noqa: E402
from benchmarks.learning.runs import Run  # noqa: E402
from benchmarks.learning.table import draw, format_rows, make_rows  # noqa: E402
from xloader.testing.waves import WaveSpec  # noqa: E402

SPEC = WaveSpec(num_steps=128, num_lats=5, num_lons=8, chunk_steps=8)
pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.XloaderWarning")


@pytest.fixture(scope="module")
def waves(tmp_path_factory) -> Case:
    return make_waves(tmp_path_factory.mktemp("waves"), SPEC)


def ids_of(case: Case, way: Way, seed: int = 0) -> list[np.ndarray]:
    orders = draw_orders(way, case.tiled, batch_size=8, num_epochs=2, seed=seed)
    return [epoch.ids for epoch in orders]


@pytest.mark.parametrize("way", {way.kind: way for way in WAYS}.values(), ids=lambda w: w.kind)
def test_every_order_has_each_sample_once_an_epoch(waves, way):
    epochs = list(draw_orders(way, waves.tiled, batch_size=8, num_epochs=2, seed=3))
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch.ids), np.arange(len(waves.tiled.tile_of)))
        assert epoch.num_reads == epoch.num_predicted
    is_ascending = way.kind == "ascending"
    assert np.array_equal(epochs[0].ids, epochs[1].ids) == is_ascending
    again = ids_of(waves, way, seed=3)
    np.testing.assert_array_equal(again[1], epochs[1].ids)
    assert np.array_equal(ids_of(waves, way, seed=4)[0], epochs[0].ids) == is_ascending


def test_chunks_in_turn_finish_a_chunk_before_the_next(waves):
    tiles = waves.tiled.tile_of[ids_of(waves, Way("tiles"))[0]]
    changes = np.count_nonzero(np.diff(tiles))
    assert changes == waves.tiled.num_tiles - 1
    assert not np.array_equal(tiles, np.sort(tiles))


def test_a_sample_leaves_a_shuffle_buffer_after_it_came_in(waves):
    """It can go out at most as many places early as the buffer has room for."""
    way = Way("buffer", 4)
    entering = ids_of(waves, Way("tiles"))[0]
    leaving = ids_of(waves, way)[0]
    places = np.argsort(entering)[leaving] - np.arange(len(leaving))
    size = 4 * len(leaving) // waves.tiled.num_tiles
    assert size // 2 < places.max() <= size
    assert not np.array_equal(entering, leaving)


def test_a_shuffle_buffer_reads_what_its_chunks_in_turn_do(waves):
    reads = [
        [one.num_reads for one in draw_orders(way, waves.tiled, batch_size=8, num_epochs=2, seed=0)]
        for way in (Way("buffer", 8), Way("tiles"), Way("full", 2))
    ]
    assert reads[0] == reads[1]
    assert reads[0][0] < reads[2][0]


def test_all_orders_begin_with_the_same_weights(waves):
    first, same, other = (list(waves.make_net(seed).parameters()) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_blocks_of_a_store(tmp_path):
    values = np.random.default_rng(0).normal(size=(130, 24, 50)).astype("f4")
    values[:, :4, :4] = np.nan
    path = tmp_path / "maps.nc"
    xr.Dataset({"sst": (("time", "lat", "lon"), values)}).to_netcdf(path)
    case = make_blocks(str(path), tmp_path / "own")
    tiled = case.tiled
    # 104 steps of training are 9 chunks, so 6 blocks make 54 tiles.
    assert tiled.num_tiles == 54
    assert case.training.inputs.shape == (103 * 6, 1, 12, 16)
    needed = tiled.samples.explain(batch_size=8, memory="64MiB")
    assert needed.num_reads == 54
    assert math.prod(needed.tile.values()) * 4 == tiled.tile_nbytes
    assert torch.isfinite(case.training.inputs).all()
    hidden = torch.isnan(case.training.targets).sum(dim=(0, 1))
    assert hidden[:4, :4].unique().tolist() == [103]
    assert hidden[4:].sum() == 0
    # Row 6 of the samples is the first block, one step on.
    torch.testing.assert_close(case.training.inputs[6], case.training.targets[0].nan_to_num())


def test_differences_are_paired(tmp_path):
    base = Run("waves", FULL.name, 0, 1.0, 10, 5, 4, 4, 1.0, 3.0, 3.0, 3.0, 3.0, 1.0)
    runs = [
        dataclasses.replace(base, way=way.name, seed=seed, loss=(1 + more) * (1 + seed))
        for way, more in ((FULL, 0.0), (Way("plan", 2), 0.1), (Way("buffer", 2), 0.3))
        for seed in range(3 if way == FULL else 2)
    ]
    full, plan, _ = rows = make_rows(runs, "waves")
    assert (full.num_seeds, plan.num_seeds) == (3, 2)
    # Of the full shuffle's losses 1 and 2, the differences are 0.1 and 0.2: of their mean, 6.7 %
    # and 13.3 %.
    assert plan.difference == pytest.approx(10)
    assert plan.error == pytest.approx(10 / 3)
    assert "| even pace, 2 tiles | 1.6500 | +10.00 ± 3.33 % | 2 |" in format_rows(rows)
    draw({"waves": rows}, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 10_000
