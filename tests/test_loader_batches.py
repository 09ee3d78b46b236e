"""Batches of a loader: the values of single samples, and the memory that they own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.errors import MemoryBudgetError, MissingDependencyError, OptionError
from xloader.loader.batches.batch import Batch
from xloader.testing import CountingStore, write_store

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    # NaN must come through unchanged.
    pytest.mark.filterwarnings("ignore::xloader.errors.NanWarning"),
]

CHUNKS = {"t": (4, 3, 2), "u": (6, 4, 5), "z": (5, 1, 4, 5), "oro": (2, 5), "co2": (7,)}


def make_dataset() -> xr.Dataset:
    rng = np.random.default_rng(5)
    t = rng.random((36, 4, 5), np.float32)
    t[7, 2, 2:] = np.nan
    return xr.Dataset(
        {
            "t": (("time", "lat", "lon"), t),
            "u": (("time", "lat", "lon"), rng.integers(-99, 99, (36, 4, 5)).astype(np.int16)),
            "z": (("time", "level", "lat", "lon"), rng.random((36, 3, 4, 5), np.float32)),
            "oro": (("lat", "lon"), rng.random((4, 5), np.float32)),
            "co2": (("time",), rng.random(36, np.float32)),
        },
        coords={"time": np.arange(36), "level": [500, 850, 1000]},
    )


@pytest.fixture(scope="module")
def store() -> CountingStore:
    return CountingStore(write_store(make_dataset(), CHUNKS))


def least_memory(samples: Samples, **options: Any) -> int:
    with pytest.raises(MemoryBudgetError) as caught:
        samples.loader(**options, memory=1)
    return caught.value.minimum_nbytes


def double(dataset: xr.Dataset) -> xr.Dataset:
    return dataset * 2


def difference(dataset: xr.Dataset) -> xr.Dataset:
    return xr.Dataset({"change": dataset.t.isel(time=-1) - dataset.t.isel(time=0)})


STATS = {"t": (0.25, 2.0), "u": (1.0, 50.0), "oro": (0.5, 0.125)}

RECIPES: dict[str, Callable[[Samples], Samples]] = {
    "normalize": lambda s: (
        s.window(time=2, stride=1).inputs("t", "u", "oro").targets("u").normalize(STATS)
    ),
    "fillna": lambda s: s.window(time=2, stride=1).inputs("t", "u").fillna(-1.0),
    "normalize, fillna": lambda s: (
        s.window(time=2, stride=1).inputs("t").normalize(STATS).fillna(0.0)
    ),
    "fillna, normalize": lambda s: (
        s.window(time=2, stride=1).inputs("t").fillna(0.0).normalize(STATS)
    ),
    "a recorded method": lambda s: s.window(time=3).inputs("t").targets("u", time=1).clip(0.2, 0.7),
    "a map of batches": lambda s: s.window(time=3, stride=1).normalize(STATS).map(double),
    "a map of samples": lambda s: s.window(time=3, stride=1).map(difference, per="sample"),
}


@pytest.mark.parametrize("make", RECIPES.values(), ids=RECIPES)
def test_batches_equal_samples(store: CountingStore, make: Any) -> None:
    """Batches equal single samples bit for bit, with the least memory and on two ranks."""
    samples = make(xloader.open(store))
    options = {"batch_size": 5, "output": "numpy", "threads": 2, "prefetch": 1}
    memory = least_memory(samples, **options, world=xloader.World(0, 2))
    num_seen = 0
    for rank in range(2):
        with samples.loader(**options, world=xloader.World(rank, 2), memory=memory) as loader:
            for batch in loader:
                expected = samples[batch.ids]
                assert batch.names == samples.fields == expected.names
                for array, wanted in zip(batch, expected, strict=True):
                    assert array.dtype == wanted.dtype
                    np.testing.assert_array_equal(array, wanted)
                num_seen += int((~batch.is_padding).sum())
    assert num_seen == len(samples)


def make_samples(store: CountingStore) -> Samples:
    return xloader.open(store).window(time=2, stride=1).inputs("t").targets("u", time=1)


def collected(samples: Samples, **options: Any) -> list[tuple[np.ndarray, ...]]:
    """Return copies of all batches as tuples with the ids first."""
    with samples.loader(**{"batch_size": 4, "output": "numpy", **options}) as loader:
        return [(batch.ids.copy(), *(array.copy() for array in batch)) for batch in loader]


def assert_same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other) > 0
    for left, right in zip(one, other, strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shuffle", [True, False])
def test_any_world_gives_the_same_global_batches(store: CountingStore, shuffle: bool) -> None:
    """Law 5: the ranks' rows together equal the batches of one rank that has all lanes."""
    samples = make_samples(store)
    worlds = []
    for world_size in (1, 2, 4):
        parts = []
        for rank in range(world_size):
            options = {
                "world": xloader.World(rank, world_size),
                "plan": xloader.PlanRules(lanes=4),
                "memory": "40kB",
            }
            with samples.loader(
                **options, batch_size=8 // world_size, output="numpy", shuffle=shuffle
            ) as loader:
                plan = loader.plan
                parts.append([(b.ids[~b.is_padding], b.inputs[~b.is_padding]) for b in loader])
        worlds.append((plan, [
            [np.concatenate(column) for column in zip(*step, strict=True)]
            for step in zip(*parts, strict=True)
        ]))  # fmt: skip
    for plan, steps in worlds[1:]:
        assert plan == worlds[0][0]
        assert_same(worlds[0][1], steps)


def test_tensors_share_memory_with_what_was_gathered(store: CountingStore) -> None:
    torch = pytest.importorskip("torch", reason="tensors need PyTorch")
    samples = make_samples(store)
    with samples.loader(batch_size=4) as loader:
        gathered = []
        hand_over = loader._hand_over
        loader._hand_over = lambda array: gathered.append(array) or hand_over(array)  # type: ignore[func-returns-value]
        for batch in loader:
            assert isinstance(batch, Batch)
            assert all(isinstance(tensor, torch.Tensor) for tensor in batch)
            arrays, gathered[:] = gathered[:], []
            assert [t.data_ptr() for t in batch] == [a.ctypes.data for a in arrays]
            np.testing.assert_array_equal(batch.inputs.numpy(), samples[batch.ids].inputs)
            assert isinstance(batch.ids, np.ndarray)
    with samples.loader(batch_size=4, device="cpu") as loader:
        moved = next(iter(loader))
        assert moved.targets.device == torch.device("cpu")
        np.testing.assert_array_equal(moved.ids, next(iter(loader)).ids)


def test_arrays_where_numpy_is_asked_for(store: CountingStore) -> None:
    with make_samples(store).loader(batch_size=4, output="numpy") as loader:
        batch = next(iter(loader))
    assert [type(array) for array in batch] == [np.ndarray, np.ndarray]
    assert batch.inputs.flags.writeable
    assert batch.source is None


def test_without_pytorch_tensors_are_refused(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r'To mend it: .*pip install "\.\[torch\]"'):
        make_samples(store).loader(batch_size=4)


def test_collate_fn_is_given_samples(store: CountingStore) -> None:
    """collate_fn gets a list of tuples, one per sample with one array per field, as in PyTorch."""
    samples = make_samples(store)

    def collate(rows: list[tuple[np.ndarray, ...]]) -> dict[str, np.ndarray]:
        assert isinstance(rows, list)
        assert isinstance(rows[0], tuple)
        return {"x": np.stack([x for x, _ in rows]), "y": np.stack([y for _, y in rows])}

    with samples.loader(batch_size=4, output="numpy", collate_fn=collate) as loader:
        made = list(loader)
    for batch, (_, x, y) in zip(made, collected(samples), strict=True):
        np.testing.assert_array_equal(batch["x"], x)
        np.testing.assert_array_equal(batch["y"], y)


def test_a_report_before_the_first_epoch(store: CountingStore) -> None:
    with (
        make_samples(store).loader(batch_size=4, output="numpy") as loader,
        pytest.raises(OptionError, match=r"nothing to report yet.*see explain\(\)"),
    ):
        loader.report()


def test_to_explain_reads_only_labels_of_windowed_dimensions(store: CountingStore) -> None:
    store.reset()
    with make_samples(store).loader(batch_size=4, output="numpy", memory="6kB") as loader:
        loader.explain()
    assert {key.split("/")[0] for key in store.reads} == {"time"}
