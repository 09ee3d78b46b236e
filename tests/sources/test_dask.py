"""dask arrays: each block is computed once, on the right scheduler, and its effort is reported."""

from __future__ import annotations

import subprocess
import sys
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dask.array.core import slices_from_chunks

import xloader
from tests.sources import kinds
from xloader.errors import ClusterWarning, CorruptChunkError, UnsupportedDataError
from xloader.sources.arrays.cluster_blocks import BlockComputer, effort_of
from xloader.sources.arrays.xarray_source import XarraySource, describe
from xloader.sources.base import Read, Source
from xloader.sources.open.open_source import open_source


class Count:
    """Counts computed blocks by their first number."""

    def __init__(self) -> None:
        self.calls: Counter[float] = Counter()
        self.threads: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, block: np.ndarray) -> np.ndarray:
        with self._lock:
            self.calls[float(block.flat[0])] += 1
            self.threads.add(threading.current_thread().name)
        return block

    def __dask_tokenize__(self) -> int:
        return id(self)


def counted(count: Count, size: int = 32, chunk: int = 4) -> da.Array:
    """Make rows whose blocks are counted when they are computed."""
    numbers = np.arange(size * 3.0).reshape(size, 3)
    return da.from_array(numbers, chunks=(chunk, 3)).map_blocks(count, dtype="f8", meta=np.ones(()))


def read_pair(source: Source, names: tuple[str, str], chunk: tuple[int, ...]) -> list[np.ndarray]:
    cut = kinds.whole_cut(source.variables[names[0]], chunk)
    outs = [np.empty([part.stop for part in cut]) for _ in names]
    reads = [Read(name, chunk, cut) for name in names]
    assert source.fetch(reads).decode(outs).num_requests == 2
    return outs


def test_an_epoch_computes_each_block_once_on_our_threads():
    count = Count()
    ds = xr.Dataset({"t": (("time", "x"), counted(count) * 2)})
    samples = xloader.open(ds).window(time=2)
    with samples.loader(batch_size=4, memory="1MiB", output="numpy") as loader:
        assert not count.calls
        ids = np.concatenate([batch.ids for batch in loader])
        assert loader.report().num_reads == 8
    assert sorted(ids) == list(range(16))
    assert count.calls == Counter({12.0 * block: 1 for block in range(8)})
    assert all(name.startswith("xloader-") for name in count.threads)


def test_blocks_of_variables_made_of_the_same_tasks_come_together():
    count = Count()
    base = counted(count)
    ds = xr.Dataset(
        {"up": (("time", "x"), base + 1), "down": (("time", "x"), base - 1)},
    ).assign(
        other=(("time", "x"), da.zeros((32, 3), chunks=(4, 3))),
        cut=(("time", "x"), base.rechunk((8, 3))),
    )
    source = open_source(ds)
    keys = {name: source.bundle_of(name, (5, 0)) for name in ("up", "down", "other")}
    # Other tasks, and blocks cut otherwise, are no company.
    assert keys["up"] == keys["down"] not in (keys["other"], source.bundle_of("cut", (2, 0)))
    assert source.bundle_of("up", (4, 0)) != keys["up"]
    up, down = read_pair(source, ("up", "down"), (5, 0))
    assert count.calls == Counter({60.0: 1})
    np.testing.assert_array_equal(up - 1, down + 1)
    np.testing.assert_array_equal(up, ds["up"][20:24])


def compute_with(function: Callable[[np.ndarray], np.ndarray]) -> xr.Dataset:
    zeros = da.zeros((12, 2), chunks=(4, 2))
    bad = zeros.map_blocks(function, dtype="f8", meta=np.ones(()))
    return xr.Dataset({"bad": (("time", "x"), bad), "fine": (("time", "x"), zeros)})


def fail(block: np.ndarray) -> np.ndarray:
    raise ZeroDivisionError("no such number")


def interrupt(block: np.ndarray) -> np.ndarray:
    raise KeyboardInterrupt


def test_an_error_of_a_task_names_the_variable_and_the_block():
    source = open_source(compute_with(fail))
    with pytest.raises(CorruptChunkError, match=r"ZeroDivisionError: no such number.*'bad'.*1, 0"):
        kinds.read(source, "bad", (1, 0))
    with pytest.raises(CorruptChunkError, match=r"ZeroDivisionError.*'bad', chunk \(1, 0\)"):
        read_pair(source, ("fine", "bad"), (1, 0))
    loader = xloader.open(compute_with(fail)).window(time=1).loader(batch_size=2, output="numpy")
    with loader, pytest.raises(CorruptChunkError, match="'bad'"):
        list(loader)


def test_an_interruption_passes():
    with pytest.raises(KeyboardInterrupt):
        kinds.read(open_source(compute_with(interrupt)), "bad", (0, 0))


def test_a_block_that_needs_all_others_is_warned_of():
    x = da.random.random((64, 3), chunks=(2, 3))
    ds = xr.Dataset({"t": (("time", "x"), x)})
    with pytest.warns(ClusterWarning, match=r"32 blocks of variable 't'.*persist") as caught:
        source = open_source(ds - ds.mean("time"))
    assert len(caught) == 1
    assert source.path_of("t").startswith("block by block through xarray: dask, ")
    assert int(source.path_of("t").split(", ")[1].split()[0]) > 32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = open_source(ds - ds.mean("time").persist()).path_of("t")
        assert path.endswith(" tasks a block, computed (sub)")
        open_source(xr.Dataset({"t": (("time", "x"), da.map_overlap(np.abs, x, depth=1))}))


ENTRIES: dict[str, Callable[[xr.Dataset], object]] = {
    "open": xloader.open,
    "a list": lambda ds: xloader.open([ds]),
    "accessor": lambda ds: ds.xloader,
    "accessor of an array": lambda ds: ds["t"].xloader,
    "tree": lambda ds: xr.DataTree(ds).xloader,
    "concat": lambda ds: xloader.concat([ds]),
    "join": lambda ds: xloader.join({"a": ds, "b": ds.isel(time=slice(2)).compute()}),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_a_warning_while_opening_points_at_the_line_of_the_user(name):
    x = da.random.random((64, 3), chunks=(2, 3))
    ds = xr.Dataset({"t": (("time", "x"), x)}, {"time": np.arange(64)})
    with pytest.warns(ClusterWarning) as caught:
        ENTRIES[name](ds - ds.mean("time"))
    assert [one.filename for one in caught] == [__file__]


def test_chunks_of_unknown_size_are_refused_until_they_are_computed():
    x = da.from_array(np.arange(24.0).reshape(12, 2), chunks=(5, 2))
    some = xr.Dataset({"t": (("time", "x"), x[x[:, 0] > 7]), "u": (("day", "x"), x)})
    for name in ("open", "accessor", "accessor of an array", "tree"):
        with pytest.raises(UnsupportedDataError, match=r"'t' of .*unknown size.*time: nan, x: 2"):
            ENTRIES[name](some)
    for call in (xloader.concat, lambda parts: xloader.join(dict(zip("ab", parts, strict=True)))):
        with pytest.raises(UnsupportedDataError, match=r"ds\['t'\]\.data\.compute_chunk_sizes"):
            call([some, some])
    assert xloader.open(some, variables="u").recipe.dim_sizes == {"day": 12, "x": 2}
    some["t"].data.compute_chunk_sizes()
    samples = xloader.open(some).window(time=2, stride=1).inputs("t")
    assert (len(samples), samples[0][0].tolist()) == (7, [[[8, 9], [10, 11]]])


GRAPHS: dict[str, Callable[[da.Array], da.Array]] = {
    "plain": lambda x: x,
    "elementwise": lambda x: x * 2 + 1,
    "sliced": lambda x: x[3:-2:2] - 1,
    "indexed": lambda x: x[[5, 1, 1]],
    "rolled": lambda x: da.roll(x, 3, axis=0),
    "rechunked": lambda x: (x + 1).rechunk((5, 2)),
    "reduced": lambda x: x.mean(axis=0) + x.sum(axis=1)[:3],
    "overlapping": lambda x: da.map_overlap(np.flip, x, depth=1),
    "joined": lambda x: da.concatenate([x, x.T[:3, :3], x]),
    "stacked": lambda x: da.stack([x, x + 1]).transpose(2, 0, 1),
    "from delayed": lambda x: da.from_delayed(x.to_delayed()[0, 0], (4, 3), "f8") + 1,
    "a single number": lambda x: x.sum(),
    "reshaped": lambda x: x.reshape(-1),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_blocks_equal_what_dask_computes(name: str):
    array = GRAPHS[name](da.from_array(np.arange(96.0).reshape(32, 3), chunks=(4, 3)))
    whole = array.compute(scheduler="synchronous")
    places = dict(zip(np.ndindex(array.numblocks), slices_from_chunks(array.chunks), strict=True))
    for index, place in places.items():
        (block,) = BlockComputer().compute([(array, index)])
        np.testing.assert_array_equal(block, whole[place])
    # dask's own culling keeps some tasks that are not needed, so it is an upper bound.
    middle = tuple(count // 2 for count in array.numblocks)
    graph = array.__dask_graph__().cull({(array.name, *middle)})
    assert 0 < effort_of(array).num_tasks <= len(graph)


PLANNED = """
import dask, warnings
dask.config.set({"array.query-planning": True})
warnings.simplefilter("ignore")
import numpy as np
from tests.sources import kinds, lazy_kinds
from xloader.sources.open.open_source import open_source

dataset = lazy_kinds.make_dataset()
ds = lazy_kinds.opened(lazy_kinds.make_store(dataset), "dask")[["t"]].isel(time=slice(1, None))
source = open_source(ds + 1)
assert source.path_of("t").startswith("block by block through xarray: dask")
reason = f"in a form of dask {dask.__version__} that xloader does not know (a graph of type "
assert reason in source.path_of("t"), source.path_of("t")
np.testing.assert_array_equal(kinds.read_all(source, "t"), dataset["t"][1:] + 1)
"""


def test_arrays_of_dasks_query_planning():
    # dask fixes the type of its arrays at its import, so this needs a process of its own.
    subprocess.run([sys.executable, "-c", PLANNED], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize("least", [10, 23], ids=["at the start", "up to a block"])
def test_blocks_without_elements_are_passed_over(least: int):
    numbers = da.arange(40, chunks=4).astype("f8")
    kept = numbers[(numbers >= least) & ((numbers < 28) | (numbers > 33))].compute_chunk_sizes()
    assert 0 in kept.chunks[0]
    ds = xr.Dataset({"up": ("x", kept + 1), "down": ("x", kept - 1)})
    assert open_source(ds).bundle_of("up", (0,)) == open_source(ds).bundle_of("down", (0,))
    samples = xloader.open(ds).window(x=3, stride=1)
    with samples.loader(batch_size=5, output="numpy") as loader:
        for batch in loader:
            for row, first in enumerate(batch.ids):
                expected = kept.compute()[first : first + 3]
                np.testing.assert_array_equal(batch["up"][row], expected + 1)
                np.testing.assert_array_equal(batch["down"][row], expected - 1)
        assert loader.report().num_reads == 2 * np.count_nonzero(kept.chunks[0])


@pytest.mark.parametrize("names", [["up"], ["up", "down"]], ids=["alone", "together"])
def test_blocks_smaller_than_dask_says_are_not_repeated(names: list[str]):
    short = da.zeros((8, 3), chunks=(4, 3)).map_blocks(
        lambda b: b[:1], dtype="f8", meta=np.ones(())
    )
    source = open_source(xr.Dataset({"up": (("t", "x"), short + 1), "down": (("t", "x"), short)}))
    cut = (slice(0, 4), slice(0, 3))
    fetched = source.fetch([Read(name, (1, 0), cut) for name in names])
    with pytest.raises(CorruptChunkError, match=r"shape \(1, 3\), but dask declares \(4, 3\)"):
        fetched.decode([np.empty((4, 3)) for _ in names])


def refuse(block: np.ndarray) -> np.ndarray:
    raise ValueError("no answer from https://me:canary1@host/a?sig=canary2 (canary3)")


def test_errors_of_blocks_tell_no_secret():
    ds = xr.Dataset({"t": ("x", da.zeros(4).map_blocks(refuse, dtype="f8", meta=np.ones(())))})
    source = XarraySource(
        describe(ds, ("t",), None), open_dataset=lambda: ds, name="a file", secrets=("canary3",)
    )
    with pytest.raises(CorruptChunkError, match="ValueError: no answer from https://") as caught:
        kinds.read(source, "t", (0,))
    told = "".join(traceback.format_exception(caught.value))
    assert "canary" not in told
