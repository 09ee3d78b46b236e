"""An error in an epoch is raised at the batch that it belongs to, and nowhere else."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.engine.python_loads import PythonLoads
from xloader.errors import CorruptChunkError
from xloader.testing import FaultyStore, garble, truncate, write_store

STEPS, CHUNK = 40, 4


def make_dataset() -> xr.Dataset:
    return xr.Dataset(
        {
            "t": (("time", "x"), np.arange(STEPS * 3.0).reshape(STEPS, 3)),
            "u": (("time",), np.arange(STEPS, dtype=np.int32)),
        }
    )


def open_faulty(faults: Any) -> tuple[FaultyStore, xloader.Samples]:
    chunks = {"t": (CHUNK, 3), "u": (CHUNK,)}
    store = FaultyStore(write_store(make_dataset(), chunks), faults)
    return store, xloader.open(store).window(time=1)


def take_until_error(loader: xloader.Loader) -> tuple[list[xloader.Batch], BaseException]:
    batches = []
    iterator = iter(loader)
    try:
        for batch in iterator:
            batches.append(batch)
    except Exception as error:
        assert list(iterator) == []
        return batches, error
    raise AssertionError("the epoch went through")


@pytest.mark.parametrize(
    ("fault", "prefetch", "threads", "shuffle"),
    [(truncate, 0, 1, True), (truncate, 3, 4, False), (garble, 3, 1, True), (garble, 0, 4, True)],
)
def test_batches_before_a_corrupt_chunk_arrive(
    fault: Any, prefetch: int, threads: int, shuffle: bool
) -> None:
    """Batches before the chunk come intact and in order; then one error names the chunk."""
    store, samples = open_faulty({"t/c/6/0": fault})
    options = {"batch_size": 3, "output": "numpy", "threads": threads, "prefetch": prefetch}
    with samples.loader(**options, shuffle=shuffle) as loader:
        ds = make_dataset()
        sound = xloader.open(write_store(ds, {"t": (CHUNK, 3), "u": (CHUNK,)})).window(time=1)
        with sound.loader(**options, shuffle=shuffle) as other:
            ids = [batch.ids for batch in other]
        num_sound = next(i for i, own in enumerate(ids) if (own // CHUNK == 6).any())
        batches, error = take_until_error(loader)
        assert isinstance(error, CorruptChunkError)
        assert (error.variable, error.chunk, error.key) == ("t", (6, 0), "t/c/6/0")
        for part in ("variable 't'", "chunk (6, 0)", "key 't/c/6/0'", "Given: "):
            assert part in str(error)
        assert [batch.ids.tolist() for batch in batches] == [i.tolist() for i in ids[:num_sound]]
        for batch in batches:
            np.testing.assert_array_equal(batch.t[:, 0], ds.t[batch.ids])
        # The epoch was not complete, so it is repeated and stops at the same batch.
        assert loader.epoch == 0
        again, error = take_until_error(loader)
        assert isinstance(error, CorruptChunkError)
        assert len(again) == num_sound
    assert store.num_faults >= 2


def test_a_chunk_that_heals_is_read_again() -> None:
    """A chunk that failed is not kept, even if all other chunks stay in memory."""
    ds = make_dataset()
    inner = write_store(ds, {"t": (CHUNK, 3), "u": (CHUNK,)})
    store = FaultyStore(inner, {"t/c/6/0": truncate}, times=1)
    samples = xloader.open(store).window(time=1)
    with samples.loader(batch_size=3, output="numpy") as loader:
        take_until_error(loader)
        batches = list(loader)
        assert loader.plan.is_resident
    ids = np.concatenate([batch.ids for batch in batches])
    assert sorted(ids.tolist()) == list(range(STEPS))
    np.testing.assert_array_equal(np.concatenate([b.t[:, 0] for b in batches]), ds.t[ids])


def test_an_error_of_the_store_keeps_its_cause() -> None:
    _, samples = open_faulty({"u/c/2": OSError("the disk is on fire")})
    with samples.loader(batch_size=3, output="numpy", shuffle=False) as loader:
        batches, error = take_until_error(loader)
    assert len(batches) == 2
    assert isinstance(error, OSError)
    texts = []
    cause: BaseException | None = error
    while cause is not None:
        texts.append(str(cause))
        cause = cause.__cause__
    assert any("the disk is on fire" in text for text in texts)


@pytest.mark.parametrize("num_missing", [1, 3])
def test_missing_chunks_give_one_warning_and_are_counted(num_missing: int) -> None:
    faults = {f"t/c/{number}/0": None for number in range(num_missing)}
    _, samples = open_faulty(faults)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with samples.loader(batch_size=4, output="numpy", shuffle=False) as loader:
            batches = list(loader)
            report = loader.report()
    kinds = [warning.category for warning in caught]
    # The fill value of the missing chunks is NaN, so there is a NaN warning as well.
    assert sorted(kind.__name__ for kind in kinds) == ["ChunkWarning", "NanWarning"]
    assert report.num_missing == num_missing
    assert ("1 chunk absent" if num_missing == 1 else f"{num_missing} chunks absent") in str(report)
    for number, batch in enumerate(batches):
        assert bool(np.isnan(batch.t).all()) == (number < num_missing)
        assert bool(np.isnan(batch.t).any()) == (number < num_missing)


class Odd(Exception):
    """An error class of the user."""


@pytest.mark.parametrize("wrong", ["a collate_fn", "a map that loses samples"])
def test_a_wrong_function_ends_the_loop(wrong: str) -> None:
    """A wrong function raises an error and hangs nothing; the next loop can start again."""

    def collate(rows: list[Any]) -> Any:
        raise Odd(len(rows))

    def lose(dataset: xr.Dataset) -> xr.Dataset:
        return dataset.isel(sample=slice(1))

    _, samples = open_faulty({})
    if wrong == "a collate_fn":
        loader = samples.loader(batch_size=4, output="numpy", collate_fn=collate)
        with pytest.raises(xloader.errors.TransformError, match=r"collate_fn.*Odd: 4"):
            next(iter(loader))
    else:
        loader = samples.map(lose).loader(batch_size=4, output="numpy")
        with pytest.raises(xloader.errors.XloaderError, match=r"sample.*Given"):
            next(iter(loader))
    assert loader.epoch == 0
    loader.close()


def test_a_bug_in_a_worker_is_raised_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    _, samples = open_faulty({})
    with samples.loader(batch_size=4, output="numpy", threads=2) as loader:
        monkeypatch.setattr(PythonLoads, "give_memory", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            list(loader)
        monkeypatch.undo()
        assert sum(len(batch.ids) for batch in loader) == STEPS
