"""`Loader.preview` draws the batch that comes next, and the epoch is complete after it."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.errors import EmptySamplesError, OptionError
from xloader.loader.loader import Loader
from xloader.loader.preview import rows_of_steps
from xloader.testing import CountingStore, is_chunk_key, write_store

pytest.importorskip("matplotlib")

DATA = xr.Dataset(
    {"t": (("time", "x"), np.arange(320.0, dtype="f4").reshape(80, 4), {"units": "K"})},
    {"x": [0.0, 1.0, 2.0, 3.0]},
)


def loader_of(**options: object) -> Loader:
    samples = xloader.open(write_store(DATA, {"t": (8, 4)})).window(time=2)
    return samples.loader(**{"batch_size": 4, "output": "numpy", "memory": "64MiB", **options})


def drawn(loader: Loader, num_rows: int = 3) -> list[np.ndarray]:
    return [axes.images[0].get_array().T for axes in loader.preview(num_rows).axes if axes.images]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": False},
        {"plan": xloader.PlanRules(lanes=2)},
        {"memory": "1MiB", "plan": xloader.PlanRules(lanes=2)},
        {"batch_size": 64},
    ],
)
def test_the_rows_are_those_of_the_batch_that_comes_next(options):
    loader = loader_of(**options)
    for _ in range(2):
        rows = drawn(loader)
        part = loader._left(loader._cursor.start)
        ids, _ = rows_of_steps(part, loader._resolver.rank_plan.sublanes(), [0])[0]
        batches = list(loader)
        assert ids.tolist() == batches[0].ids.tolist()
        for row, image in enumerate(rows):
            assert np.array_equal(np.asarray(image), batches[0].t[row])
        assert sorted(np.concatenate([b.ids for b in batches])) == list(range(40))


def test_the_preview_moves_nothing_on_while_an_epoch_is_under_way():
    loader, other = loader_of(), loader_of()
    batches = iter(loader)
    first = next(batches)
    state = loader.state_dict()
    rows = drawn(loader)
    # The next iter starts the epoch again.
    assert np.array_equal(np.asarray(rows[0]), first.t[0])
    assert loader.state_dict() == state
    rest = [batch.ids.tolist() for batch in batches]
    assert [first.ids.tolist(), *rest] == [batch.ids.tolist() for batch in other]
    assert loader.report().num_reads == other.report().num_reads


def test_after_a_state_the_preview_is_of_the_rest():
    loader, other = loader_of(), loader_of()
    batches = iter(other)
    for _ in range(3):
        next(batches)
    loader.load_state_dict(other.state_dict())
    title = loader.preview().get_suptitle()
    assert title.startswith("Batch 4 of 10 batches of epoch 0: 4 samples")
    rows = drawn(loader)
    assert np.array_equal(np.asarray(rows[0]), next(batches).t[0])
    other.close()


def test_random_functions_draw_the_numbers_of_the_epoch():
    def noise(batch: xr.Dataset, rng: xloader.Rng) -> xr.Dataset:
        return batch + rng.uniform((2, 4))

    samples = xloader.open(write_store(DATA, {"t": (8, 4)})).window(time=2).map(noise, random=True)
    # Each of few samples occurs several times, with other numbers each time.
    loader = samples.weighted(np.arange(40.0) > 36, num_samples=30).loader(
        batch_size=30, output="numpy", memory="64MiB", seed=3
    )
    rows = drawn(loader, 12)
    batch = next(iter(loader))
    assert len(rows) == 12
    for row, image in enumerate(rows):
        assert np.array_equal(np.asarray(image, batch.t.dtype), batch.t[row])
    loader.close()


def test_only_chunks_of_the_batch_are_read_and_facts_are_told():
    store = CountingStore(write_store(DATA.where(DATA["x"] > 0), {"t": (8, 4)}))
    loader = (
        xloader.open(store)
        .window(time=2)
        .loader(batch_size=4, output="numpy", memory="64MiB", shuffle=False)
    )
    figure = loader.preview(1, channel="t")
    reads = {key: num for key, num in store.reads.items() if is_chunk_key(key) and "t" in key}
    assert reads == {"t/c/0/0": 1}
    assert figure.get_suptitle() == (
        "First of 10 batches of epoch 0: 4 samples, 128 B\nt (4, 2, 4) float32, 25.00% NaN"
    )
    assert figure.get_supxlabel() == "shown: 1 of 4 samples"


def test_without_a_batch_there_is_nothing_to_draw():
    with pytest.raises(EmptySamplesError, match="no batch to draw"):
        loader_of(batch_size=64, drop_last=True).preview()
    with pytest.raises(OptionError):
        loader_of().preview(0)
