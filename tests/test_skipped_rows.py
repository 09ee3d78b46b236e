"""With on_error="skip", an unreadable chunk costs only the samples that need it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.hanging import KEY, make_samples, released
from xloader.errors import (
    ChunkWarning,
    CorruptChunkError,
    MissingChunkError,
    StoreChangedError,
)
from xloader.testing import FaultyStore, LatencyStore, garble, write_store

STEPS, CHUNK = 40, 4
VALUES = np.arange(STEPS * 3.0).reshape(STEPS, 3)


def samples_of(
    faults: Any, *, window: Any = 1, seconds: float | None = None, **options: Any
) -> xloader.Samples:
    encoding = options.pop("encoding", None)
    ds = xr.Dataset({"t": (("time", "x"), VALUES), "u": (("time",), VALUES[:, 0])})
    inner = write_store(ds, {"t": (CHUNK, 3), "u": (2 * CHUNK,)}, encoding=encoding)
    store: Any = FaultyStore(inner, faults)
    if seconds is not None:
        store = LatencyStore(store, seconds)
    return xloader.open(store, **options).window(time=window, stride=1)


def read_all(loader: xloader.Loader) -> list[xloader.Batch]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ChunkWarning)
        return list(loader)


@pytest.mark.parametrize(
    ("shuffle", "threads", "seconds"), [(True, 1, None), (True, 4, 0.0), (False, 4, None)]
)
def test_rows_stay_and_are_flagged(shuffle: bool, threads: int, seconds: float | None) -> None:
    samples = samples_of({"t/c/6/0": garble, "u/c/0": garble}, seconds=seconds)
    bad = {*range(24, 28), *range(8)}
    options = {"batch_size": 16, "output": "numpy", "shuffle": shuffle, "threads": threads}
    with samples.loader(**options, on_error="skip", on_nan="ignore") as loader:
        for _ in range(2):
            batches = read_all(loader)
            assert [len(batch.ids) for batch in batches] == [16, 16, 8]
            ids = np.concatenate([batch.ids for batch in batches])
            is_padding = np.concatenate([batch.is_padding for batch in batches])
            assert sorted(ids[~is_padding]) == sorted(set(range(STEPS)) - bad)
            assert is_padding.sum() == len(bad)
            for batch in batches:
                np.testing.assert_array_equal(batch.t[:, 0], VALUES[batch.ids])
                np.testing.assert_array_equal(batch.u[:, 0], VALUES[batch.ids, 0])
                # Another row of the same batch replaces the skipped one.
                assert set(batch.ids[batch.is_padding]) <= set(batch.ids[~batch.is_padding])
            report = loader.report()
            assert report.num_skipped_samples == len(bad)
            assert report.num_samples == STEPS - len(bad)
            assert report.skipped_chunks == (("t", (6, 0)), ("u", (0,)))
            assert "12 samples in 2 chunks" in str(report)


def test_a_short_batch_of_a_rank_is_filled_up_after_its_bad_rows() -> None:
    """A rank's last batch may have a bad row, and fewer rows than are delivered."""
    samples = samples_of({"t/c/6/0": garble}).select(range(18, 25))
    for seed in range(8):
        seen: list[int] = []
        for rank in range(2):
            options = {"batch_size": 4, "seed": seed, "world": xloader.World(rank, 2)}
            with samples.loader(**options, output="numpy", on_error="skip") as loader:
                (batch,) = read_all(loader)
            np.testing.assert_array_equal(batch.t[:, 0], VALUES[batch.ids + 18])
            seen += batch.ids[~batch.is_padding].tolist()
        assert sorted(seen) == [0, 1, 2, 3, 4, 5]


def test_windows_that_straddle_a_bad_chunk() -> None:
    samples = samples_of({"t/c/6/0": garble}, window=3)
    with samples.loader(batch_size=16, output="numpy", on_error="skip") as loader:
        batches = read_all(loader)
    ids = np.concatenate([batch.ids[~batch.is_padding] for batch in batches])
    assert sorted(ids) == [i for i in range(STEPS - 2) if not 22 <= i < 28]
    for batch in batches:
        for row, first in zip(batch.t, batch.ids, strict=True):
            np.testing.assert_array_equal(row, VALUES[first : first + 3])


def test_of_a_shard_only_the_bad_chunk_is_skipped() -> None:
    google_crc32c = pytest.importorskip("google_crc32c")
    encoding = {"t": {"shards": (20, 3), "compressors": None}}

    def misplace(data: bytes) -> bytes:
        """Make the index place the second of five chunks far behind the shard's end."""
        row = 16
        index = data[-4 - 5 * row : -4]
        index = index[:row] + (2**42).to_bytes(8, "little") + index[row + 8 :]
        return data[: -4 - 5 * row] + index + google_crc32c.value(index).to_bytes(4, "little")

    samples = samples_of({"t/c/0/0": misplace}, encoding=encoding)
    with samples.loader(batch_size=20, output="numpy", on_error="skip", shuffle=False) as loader:
        batches = read_all(loader)
        assert loader.report().skipped_chunks == (("t", (1, 0)),)
    assert [int(batch.is_padding.sum()) for batch in batches] == [4, 0]


def test_a_batch_without_a_good_row_raises() -> None:
    samples = samples_of({"t/c/6/0": garble})
    options = {"batch_size": 4, "output": "numpy", "shuffle": False, "on_error": "skip"}
    with samples.loader(**options) as loader:
        ids: list[int] = []
        with pytest.raises(CorruptChunkError, match=r"chunk \(6, 0\)") as caught:
            ids.extend(i for batch in loader for i in batch.ids)
    assert "no good row. Pass a larger batch_size or shuffle=True" in caught.value.__notes__[0]


def test_absent_chunks_are_skipped_where_they_are_refused() -> None:
    samples = samples_of({"t/c/6/0": None}, on_missing="raise")
    with samples.loader(batch_size=16, output="numpy") as loader, pytest.raises(MissingChunkError):
        list(loader)
    with samples.loader(batch_size=16, output="numpy", on_error="skip") as loader:
        assert sum(int(batch.is_padding.sum()) for batch in read_all(loader)) == 4


def test_a_chunk_that_never_comes_is_skipped() -> None:
    released.append(type(released[0])())
    samples = make_samples("sync", read_timeout=0.2, max_retries=1)
    with samples.loader(batch_size=16, output="numpy", on_error="skip") as loader:
        assert sum(int(batch.is_padding.sum()) for batch in read_all(loader)) == 5
        assert loader.report().skipped_chunks == (("t", (3, 0)),)
    released[-1].set()
    assert KEY == "t/c/3/0"


def test_the_user_is_told_once_of_an_epoch() -> None:
    samples = samples_of({"t/c/6/0": garble, "t/c/2/0": garble})
    with samples.loader(batch_size=8, output="numpy", on_error="skip") as loader:
        with pytest.warns(ChunkWarning, match="is_padding") as told:
            list(loader)
        assert len(told) == 1


def test_a_store_that_changed_is_no_chunk_to_skip() -> None:
    samples = samples_of({"t/c/6/0": StoreChangedError("changed")})
    loader = samples.loader(batch_size=16, output="numpy", on_error="skip")
    with loader, pytest.raises(StoreChangedError):
        read_all(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_are_flagged_at_the_doors_too(num_workers: int) -> None:
    from xloader.torch import data_loader

    samples = samples_of({"t/c/6/0": garble})
    loader = data_loader(samples, 16, num_workers=num_workers, on_error="skip")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = list(loader)
    ids = [i for b in batches for i in np.asarray(b.ids)[~np.asarray(b.is_padding)].tolist()]
    assert sorted(ids) == [i for i in range(STEPS) if not 24 <= i < 28]


def test_skipped_rows_are_not_counted_as_padding() -> None:
    samples = samples_of({"t/c/6/0": garble})
    ids = []
    for rank in range(3):
        options = {"batch_size": 4, "output": "numpy", "world": xloader.World(rank, 3)}
        with samples.loader(**options, on_error="skip") as loader:
            batches = read_all(loader)
            assert [len(batch.ids) for batch in batches] == [4, 4, 4, 2]
            assert loader.report().num_padding == (rank < 2)
            ids += [i for b in batches for i in b.ids[~b.is_padding].tolist()]
    assert sorted(ids) == [i for i in range(STEPS) if not 24 <= i < 28]
