"""A store that changes while it is read raises an error before a wrong value is delivered."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.storage import LocalStore, MemoryStore, ZipStore

import xloader
from tests.sources import servers, store_kinds
from xloader.errors import CorruptChunkError, SourceAccessError, StoreChangedError
from xloader.sources import store_watch
from xloader.sources.store_watch import generation_of
from xloader.testing import CountingStore, FaultyStore, LatencyStore, garble, write_store

TIMES, WIDTH, CHUNK = 96, 8, (8, 8)
PACKED = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 3.0, "_FillValue": -1}

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part"),
]

KINDS: dict[str, dict[str, Any]] = {
    "v3": {},
    "v2": {"zarr_format": 2},
    "v2 consolidated": {"zarr_format": 2, "is_consolidated": True},
    "v3 consolidated": {"is_consolidated": True},
    "shards": {"shards": (16, 8)},
    "packed v2": {"zarr_format": 2, **PACKED},
}


def make_dataset(first: float = 0.0, times: int = TIMES, width: int = WIDTH) -> xr.Dataset:
    values = first + np.arange(times * width, dtype="f4").reshape(times, width)
    return xr.Dataset({"t": (("time", "x"), values)})


def write(
    path: Path,
    dataset: xr.Dataset,
    chunks: tuple[int, int] = CHUNK,
    *,
    zarr_format: int = 3,
    is_consolidated: bool = False,
    **encoding: Any,
) -> None:
    write_store(dataset, {"t": chunks}, path, zarr_format=zarr_format, encoding={"t": encoding})
    if is_consolidated:
        zarr.consolidate_metadata(str(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store in a folder."""
    write(tmp_path / "a.zarr", make_dataset())
    return tmp_path / "a.zarr"


def edit(path: Path, change: Callable[[dict[str, Any]], None], name: str = "") -> None:
    """Change one metadata document of the array, as a writer would."""
    name = name or ("zarr.json" if (path / "t" / "zarr.json").exists() else ".zarray")
    document = json.loads((path / "t" / name).read_text())
    change(document)
    put(path / "t" / name, json.dumps(document))


def put(path: Path, text: str) -> None:
    """Write a file as zarr does: under another name, then renamed into place."""
    other = path.with_suffix(".partial")
    other.write_text(text)
    other.replace(path)


def anew(path: Path, kind: dict[str, Any], *args: Any, **more: Any) -> None:
    """Replace this store by another one with other values.

    The exchange is one rename. If files were removed one by one, threads that read meanwhile might
    find chunks absent first.
    """
    write(beside := path.with_name(path.name + ".new"), *args, **{**kind, **more})
    away(path)
    beside.rename(path)


def away(path: Path) -> None:
    path.rename(path.with_name(path.name + ".old"))


def chunks_were(before: tuple[int, ...], now: tuple[int, ...], kind: dict[str, Any]) -> str:
    """A part of the message, in the words of the array's own document."""
    if kind.get("zarr_format") == 2:
        return f"chunks was {before}, is now {now}"
    if "shards" in kind:
        return "codecs was "
    grid = '{{"configuration": {{"chunk_shape": {}}}, "name": "regular"}}'
    return f"chunk_grid was {grid.format([*before])}, is now {grid.format([*now])}"


def other_chunks(path: Path, kind: dict[str, Any]) -> str:
    anew(path, kind, make_dataset(5000), (4, 8), **({"shards": (8, 8)} if "shards" in kind else {}))
    return chunks_were((8, 8), (4, 8), kind)


def other_shape_of_chunks(path: Path, kind: dict[str, Any]) -> str:
    """Replace the chunks by others with as many bytes: these decode, but to other elements."""
    anew(path, kind, make_dataset(5000), (16, 4))
    return chunks_were((8, 8), (16, 4), kind)


def larger(path: Path, kind: dict[str, Any]) -> str:
    zarr.open_array(str(path / "t"), mode="r+").resize((TIMES + 8, WIDTH))
    return "shape was (96, 8), is now (104, 8)"


def smaller(path: Path, kind: dict[str, Any]) -> str:
    edit(path, lambda document: document.update(shape=[TIMES // 2, WIDTH]))
    return "shape was (96, 8), is now (48, 8)"


def other_dtype(path: Path, kind: dict[str, Any]) -> str:
    anew(path, kind, make_dataset(5000), dtype="u2" if "dtype" in kind else "i4", _FillValue=1)
    return "dtype was " if kind.get("zarr_format") == 2 else "data_type was "


def other_scale(path: Path, kind: dict[str, Any]) -> str:
    zarr.open_array(str(path / "t"), mode="r+").attrs["scale_factor"] = 0.25
    before = "0.5" if "dtype" in kind else "none"
    return f"scale_factor was {before}, is now 0.25"


def other_fill_value(path: Path, kind: dict[str, Any]) -> str:
    edit(path, lambda document: document.update(fill_value=7))
    return "fill_value was "


def other_codec(path: Path, kind: dict[str, Any]) -> str:
    anew(path, kind, make_dataset(5000), compressors=None)
    return "compressor was " if kind.get("zarr_format") == 2 else "codecs was "


def other_format(path: Path, kind: dict[str, Any]) -> str:
    version = 5 - kind.get("zarr_format", 3)
    if version == 2:
        kind = {key: value for key, value in kind.items() if key != "shards"}
    anew(path, kind, make_dataset(5000), zarr_format=version)
    return f"the Zarr format was {5 - version}, is now {version}"


def deleted(path: Path, kind: dict[str, Any]) -> str:
    away(path)
    return "variable 't' is gone"


def deleted_array(path: Path, kind: dict[str, Any]) -> str:
    away(path / "t")
    return "variable 't' is gone"


def no_array(path: Path, kind: dict[str, Any]) -> str:
    name = ".zarray" if kind.get("zarr_format") == 2 else "zarr.json"
    put(path / "t" / name, '{"zarr_format"')
    return "its metadata cannot be read any more"


def no_attributes(path: Path, kind: dict[str, Any]) -> str:
    if kind.get("zarr_format") == 2:
        put(path / "t" / ".zattrs", "1.5")
    else:
        edit(path, lambda document: document.update(attributes=1.5))
    return "its metadata cannot be read any more"


CHANGES = [
    other_chunks,
    other_shape_of_chunks,
    larger,
    smaller,
    other_dtype,
    other_scale,
    other_fill_value,
    other_codec,
    other_format,
    deleted,
    deleted_array,
    no_array,
    no_attributes,
]


def replaced(path: Path, kind: dict[str, Any]) -> str:
    """Replace the store by another one with the same metadata; the old one is kept elsewhere."""
    anew(path, kind, make_dataset(5000))
    return "variable 't' was deleted and written again"


def take(batches: Iterator[Any], expected: np.ndarray, num: int | None = None) -> int:
    """Check the values of up to ``num`` batches and return the number of batches taken."""
    count = 0
    for batch in batches:
        np.testing.assert_array_equal(np.asarray(batch.t)[:, 0], expected[np.asarray(batch.ids)])
        count += 1
        if count == num:
            break
    return count


def expect_change(
    samples: xloader.Samples, change: Callable[[], str], num_before: int = 3, **options: Any
) -> None:
    """Take some batches, change the store, and expect an error that names the change."""
    expected = np.stack([samples[i][0][0] for i in range(len(samples))])
    with samples.loader(batch_size=4, output="numpy", **options) as loader:
        batches = iter(loader)
        if num_before:
            take(batches, expected, num_before)
        told = change()
        # A warning about an absent chunk would become an error of another class.
        with pytest.raises(StoreChangedError) as caught:
            take(batches, expected)
    text = str(caught.value)
    # Reading threads may see the moment between the removal of the old store and the arrival of the
    # new one, or in Zarr v2 that between the metadata of an array and the names of its dimensions.
    assert any(part in text for part in (told, " is gone", "is now none")), (told, text)
    for part in ("Given: ", "open the store again"):
        assert part in text


@pytest.mark.ends(every=3)
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        pytest.param(kind, change, id=f"{kind}-{change.__name__}")
        for kind in KINDS
        for change in (*CHANGES, replaced)
        if kind == "v3" or change is other_shape_of_chunks
    ],
)
def test_on_a_folder_before_a_wrong_value(
    kind: str, change: Callable[..., str], tmp_path: Path
) -> None:
    """Single samples are tried with all changes of every kind of store."""
    path = tmp_path / "a.zarr"
    write(path, make_dataset(), **KINDS[kind])
    samples = xloader.open(path).window(time=1)
    expect_change(samples, lambda: change(path, KINDS[kind]))
    # Samples that were opened before the change stay refused, also for a new loader.
    with samples.loader(batch_size=4, output="numpy") as loader, pytest.raises(StoreChangedError):
        next(iter(loader))


@pytest.mark.parametrize(("num_before", "threads"), [(0, 4), (1, 1), (20, 4)])
@pytest.mark.parametrize("change", [other_chunks, other_shape_of_chunks])
def test_with_few_chunks_in_memory(
    change: Callable[..., str], num_before: int, threads: int, path: Path
) -> None:
    """The change is noticed at any step, with chunks read both before and after it."""
    samples = xloader.open(path).window(time=1)
    options = {"memory": "3KiB", "shuffle": True, "threads": threads, "prefetch": 1}
    expect_change(samples, lambda: change(path, {}), num_before, **options)


@pytest.mark.ends(every=4)
@pytest.mark.parametrize(
    ("zarr_format", "change"),
    [
        *((2, change) for change in CHANGES[::2]),
        *((3, change) for change in (*CHANGES[1::2], no_array)),
    ],
)
def test_over_http_before_the_epoch_ends(zarr_format: int, change: Callable[..., str]) -> None:
    root, url = servers.http_server()
    name = store_kinds.unique("changing.zarr")
    kind = {"zarr_format": zarr_format, "is_consolidated": True}
    write(root / name, make_dataset(), **kind)
    samples = xloader.open(f"{url}/{name}").window(time=1)
    with samples.loader(batch_size=4, output="numpy", prefetch=0) as loader:
        batches = iter(loader)
        next(batches)
        told = change(root / name, kind)
        with pytest.raises(StoreChangedError) as caught:
            list(batches)
        assert told in str(caught.value) or " is gone" in str(caught.value)
        assert f"{url}/{name}" in str(caught.value)


def test_over_http_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    root, url = servers.http_server()
    name = store_kinds.unique("changing.zarr")
    write(root / name, make_dataset())
    samples = xloader.open(f"{url}/{name}").window(time=1)
    monkeypatch.setattr(store_watch, "LOOK_SECONDS", 0.0)
    expect_change(samples, lambda: other_scale(root / name, {}), prefetch=0, memory="3KiB")


def test_far_away_a_look_is_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata is read at the start of an epoch and before its last batch only."""
    monkeypatch.setattr(store_watch, "LOOK_SECONDS", float("inf"))
    counting = CountingStore(write_store(make_dataset(), {"t": CHUNK}))
    samples = xloader.open(LatencyStore(counting, 0.0)).window(time=1)
    with samples.loader(batch_size=4, output="numpy") as loader:
        counting.reset()
        assert len(list(loader)) == 24
        assert counting.metadata_reads == {"t/zarr.json": 2}
        assert counting.num_reads == loader.report().num_reads == 12
        # The second epoch reads nothing, and the last look was just now.
        assert len(list(loader)) == 24
        assert counting.metadata_reads == {"t/zarr.json": 2}


@pytest.mark.parametrize("change", [other_chunks, deleted, smaller])
def test_as_the_epoch_begins(change: Callable[..., str], path: Path) -> None:
    """A change between epochs is noticed, even if the second epoch would read nothing."""
    samples = xloader.open(path).window(time=1)
    with samples.loader(batch_size=4, output="numpy") as loader:
        assert loader.plan.is_resident
        assert len(list(loader)) == 24
        told = change(path, {})
        with pytest.raises(StoreChangedError) as caught:
            next(iter(loader))
        assert told in str(caught.value)


def values_and_attributes(path: Path) -> None:
    array = zarr.open_array(str(path / "t"), mode="r+")
    array.attrs["history"] = "looked at"
    array[:8] = np.arange(64.0).reshape(8, 8)
    part = make_dataset().isel(time=slice(8, 16))
    part.to_zarr(path, region={"time": slice(8, 16)}, consolidated=False)


def touched(path: Path) -> None:
    """Some users touch all files to keep a scratch disk from deleting them."""
    for file in path.rglob("*"):
        os.utime(file, (1, 1))


@pytest.mark.parametrize("act", [values_and_attributes, touched])
def test_what_is_no_change(act: Callable[[Path], None], path: Path) -> None:
    samples = xloader.open(path).window(time=1)
    with samples.loader(batch_size=4, output="numpy", memory="3KiB") as loader:
        batches = iter(loader)
        next(batches)
        act(path)
        assert len(list(batches)) == 23


@pytest.mark.parametrize("kind", ["v2", "v3"])
def test_written_again_into_the_same_folder_with_the_same_metadata(
    kind: str, tmp_path: Path
) -> None:
    """A file system may give a new file the inode number of the file that it replaces."""
    path = tmp_path / "a.zarr"
    write(path, make_dataset(), **KINDS[kind])
    metadata = path / "t" / (".zarray" if kind == "v2" else "zarr.json")
    if generation_of(str(metadata)) is None:
        pytest.skip("this file system does not number the files of one inode")
    samples = xloader.open(path).window(time=1)
    again = "variable 't' was deleted and written again"

    def write_again() -> str:
        # A thread that reads ahead may miss a chunk of a folder that is removed at this moment.
        metadata.unlink()
        shutil.rmtree(path)
        write(path, make_dataset(5000), **KINDS[kind])
        return again

    expect_change(samples, write_again, memory="3KiB", threads=1)


def test_a_chunk_that_is_absent_since_the_store_was_written_again(path: Path) -> None:
    """The metadata is the same, and the new chunks are not written yet."""
    samples = xloader.open(path).window(time=1)
    assert samples[17][0][0, 0] == 17 * WIDTH
    text = (path / "t" / "zarr.json").read_text()
    shutil.rmtree(path / "t")
    (path / "t").mkdir()
    (path / "t" / "zarr.json").write_text(text)
    os.utime(path / "t" / "zarr.json", (1, 1))
    with pytest.raises(StoreChangedError, match="was deleted and written again"):
        samples[30]


def test_damage_is_told_apart_from_change() -> None:
    inner = write_store(make_dataset(), {"t": CHUNK})
    store = FaultyStore(inner, {"t/c/3/0": garble})
    samples = xloader.open(store).window(time=1)
    with pytest.raises(CorruptChunkError):
        samples[24]
    write_store(make_dataset(), {"t": (4, 8)})
    document = json.loads(inner._store_dict["t/zarr.json"].to_bytes())
    document["fill_value"] = 5
    text = json.dumps(document).encode()
    inner._store_dict["t/zarr.json"] = type(inner._store_dict["t/zarr.json"]).from_bytes(text)
    with pytest.raises(StoreChangedError, match="fill_value was"):
        samples[24]


@pytest.mark.ends(every=3)
@pytest.mark.parametrize("change", [*CHANGES, replaced], ids=lambda change: change.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_single_samples(kind: str, change: Callable[..., str], tmp_path: Path) -> None:
    """A single sample names the change exactly, because no other thread reads meanwhile."""
    path = tmp_path / "a.zarr"
    write(path, make_dataset(), **KINDS[kind])
    samples = xloader.open(path).window(time=1)
    assert samples[17][0][0, 0] == 17 * WIDTH
    told = change(path, KINDS[kind])
    with pytest.raises(StoreChangedError) as caught:
        samples[17]
    assert told in str(caught.value)


def test_a_copy_in_another_process_knows_what_was_opened(path: Path) -> None:
    data = pickle.dumps(xloader.open(path).window(time=1))
    assert pickle.loads(data)[17][0][0, 0] == 17 * WIDTH
    told = other_shape_of_chunks(path, {})
    with pytest.raises(StoreChangedError) as caught:
        pickle.loads(data)[17]
    assert told in str(caught.value)


def test_copies_on_another_machine_have_stamps_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dataset().to_netcdf(tmp_path / "a.nc")
    write(tmp_path / "a.zarr", make_dataset())
    sent = [pickle.dumps(xloader.open(tmp_path / n).window(time=1)) for n in ("a.nc", "a.zarr")]
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    for name in ("a.nc", "a.zarr/t/zarr.json"):
        shutil.copyfile(tmp_path / name, tmp_path / "copy")
        os.replace(tmp_path / "copy", tmp_path / name)
    for data in sent:
        assert pickle.loads(data)[17][0][0, 0] == 17 * WIDTH


@pytest.mark.parametrize("kind", ["lazy", "dask", "cut"])
def test_open_datasets(kind: str, path: Path) -> None:
    ds = xr.open_zarr(path, chunks={} if kind == "dask" else None, consolidated=False)
    samples = xloader.open(ds.isel(x=slice(2, 6)) if kind == "cut" else ds).window(time=1)
    expect_change(samples, lambda: other_shape_of_chunks(path, {}))


def test_joined_stores(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.zarr" for number in range(4)]
    for number, path in enumerate(paths):
        write(path, make_dataset(1000.0 * number))
    samples = xloader.concat([str(path) for path in paths], dim="time").window(time=1)

    def change() -> str:
        return f"{other_chunks(paths[2], {})}. Given: {paths[2]}"

    expect_change(samples, change, memory="8KiB", shuffle=True)


@pytest.mark.parametrize("kind", ["path", "dataset", "dask", "computed"])
@pytest.mark.parametrize("is_gone", [False, True])
def test_files_that_xarray_opens(kind: str, is_gone: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    make_dataset().to_netcdf(path)
    source: Any = path
    if kind != "path":
        source = xr.open_dataset(path, chunks={"time": 8} if kind != "dataset" else None)
    samples = xloader.open(source + 1 if kind == "computed" else source).window(time=1)

    def change() -> str:
        if is_gone:
            path.unlink()
            return f"file {path} is gone"
        make_dataset(5000).to_netcdf(tmp_path / "b.nc")
        os.replace(tmp_path / "b.nc", path)
        return f"file {path} was written again"

    expect_change(samples, change)
    if kind != "path":
        source.close()


def test_datasets_in_memory_need_no_file(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    make_dataset().to_netcdf(path)
    with xr.open_dataset(path) as ds:
        opened = [ds.load(), xr.open_dataset(path, chunks={"time": 8}).persist()]
    path.unlink()
    for ds in opened:
        with xloader.open(ds).window(time=1).loader(batch_size=4, output="numpy") as loader:
            assert len(list(loader)) == 24


def test_zip_files(tmp_path: Path) -> None:
    def pack(first: float) -> None:
        write(tmp_path / "a", make_dataset(first))
        shutil.make_archive(str(tmp_path / "new"), "zip", tmp_path / "a")
        os.replace(tmp_path / "new.zip", tmp_path / "a.zip")

    pack(0)
    for source in (tmp_path / "a.zip", ZipStore(tmp_path / "a.zip", mode="r")):
        samples = xloader.open(source).window(time=1)

        def change() -> str:
            pack(5000)
            return f"file {tmp_path / 'a.zip'} was written again"

        expect_change(samples, change)


def test_stores_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_watch, "LOOK_SECONDS", 0.0)
    store = write_store(make_dataset(), {"t": CHUNK})
    assert isinstance(store, MemoryStore)
    samples = xloader.open(store).window(time=1)

    def change() -> str:
        make_dataset(5000).to_zarr(
            store, mode="w", zarr_format=3, consolidated=False, encoding={"t": {"chunks": (16, 4)}}
        )
        return chunks_were((8, 8), (16, 4), {})

    expect_change(samples, change, memory="3KiB", prefetch=0)


@pytest.mark.parametrize("kind", ["folder", "far"])
def test_consolidated_metadata_that_is_behind_is_believed(kind: str, tmp_path: Path) -> None:
    """Consolidated metadata from before an append is accepted; another encoding is refused.

    An older size only hides the appended elements. An older scale would give wrong values.
    """
    path = tmp_path / "a.zarr"
    for change, is_fine in ((larger, True), (other_scale, False)):
        write(path, make_dataset(), is_consolidated=True)
        told = change(path, {})
        store = LocalStore(path, read_only=True)
        samples = xloader.open(store if kind == "folder" else LatencyStore(store, 0)).window(time=1)
        with samples.loader(batch_size=4, output="numpy") as loader:
            if is_fine:
                assert take(iter(loader), make_dataset().t.values) == 24
                continue
            with pytest.raises(StoreChangedError) as caught:
                list(loader)
            assert told in str(caught.value)


def test_consolidated_metadata_alone(tmp_path: Path) -> None:
    """Arrays without a document of their own cannot be watched, and this is no error."""
    path = tmp_path / "a.zarr"
    write(path, make_dataset(), is_consolidated=True)
    (path / "t" / "zarr.json").unlink()
    for store in (path, LatencyStore(LocalStore(path, read_only=True), 0)):
        with xloader.open(store).window(time=1).loader(batch_size=4, output="numpy") as loader:
            assert len(list(loader)) == 24


def test_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that fails during the epoch is passed over; a last look that fails is an error."""
    monkeypatch.setattr(store_watch, "LOOK_SECONDS", 0.0)
    faults: dict[str, Any] = {}
    store = FaultyStore(write_store(make_dataset(), {"t": CHUNK}), faults)
    samples = xloader.open(store).window(time=1)
    with samples.loader(batch_size=4, output="numpy", memory="3KiB", prefetch=0) as loader:
        batches = iter(loader)
        next(batches)
        store._faults["t/zarr.json"] = OSError("no answer")
        expected = make_dataset().t.values
        assert take(batches, expected, 22) == 22
        with pytest.raises(SourceAccessError, match="while reading its metadata again"):
            next(batches)
