"""A fifo, socket or device in the place of a file is refused, because reading it may never end."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from zarr.codecs import ZstdCodec
from zarr.storage import LocalStore

import xloader
from tests.sources import kinds
from xloader.errors import ChunkError, CorruptChunkError, XloaderError
from xloader.sources.open.open_source import open_source
from xloader.sources.zarr import object_readers
from xloader.testing import write_store

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no fifos")


def put_socket(path: Path) -> None:
    # The path of a socket must be short, and paths of tests are long.
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(path.parent):
        server.bind(path.name)


IMPOSTORS: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "socket": put_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.fixture(params=IMPOSTORS)
def impostor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def replace(path: Path, kind: str) -> None:
    path.unlink()
    IMPOSTORS[kind](path)


@pytest.mark.parametrize(
    "kind",
    ["zarr-direct-local", "zarr-sharded", "zarr-v2", "zarr-packed", "zarr-unknown-chain"],
)
def test_in_the_place_of_a_chunk(tmp_path: Path, kind: str, impostor: str) -> None:
    opened = kinds.KINDS[kind](tmp_path, kinds.make_dataset())
    root = Path(opened.source.name)
    (key,) = [key for key in ("t/c/0/0/0", "t/0.0.0") if (root / key).exists()]
    replace(root / key, impostor)
    with pytest.raises(ChunkError, match=f"there is a {impostor} .*'{key}'.*To mend it") as caught:
        kinds.read(opened.source, "t", (0, 0, 0))
    assert not isinstance(caught.value, CorruptChunkError)
    assert caught.value.key == key
    kinds.read(opened.source, "t", (2, 0, 0))


def test_in_a_store_that_was_given(tmp_path: Path, impostor: str) -> None:
    opened = kinds.KINDS["zarr-unknown-chain"](tmp_path, kinds.make_dataset())
    root = Path(opened.source.name)
    source = open_source(LocalStore(root, read_only=True))
    replace(root / "t/c/0/0/0", impostor)
    with pytest.raises(ChunkError, match=f"there is a {impostor} "):
        kinds.read(source, "t", (0, 0, 0))


@pytest.mark.parametrize("num_chunks", [1, 2], ids=["a part", "all of it"])
@pytest.mark.parametrize("where", ["start", "end"])
def test_in_the_place_of_a_shard(
    tmp_path: Path, where: str, num_chunks: int, impostor: str
) -> None:
    values = xr.Dataset({"a": (("x",), np.arange(8.0))})
    codec = {"compressors": [ZstdCodec()]}
    write_store(
        values, {"a": (4,)}, tmp_path / "s.zarr",
        encoding={"a": {**codec, "shards": {"shape": (8,), "index_location": where}}},
    )  # fmt: skip
    samples = xloader.open(tmp_path / "s.zarr").window(x=4)
    replace(tmp_path / "s.zarr/a/c/0", impostor)
    with (
        samples.select(range(num_chunks)).loader(batch_size=2, output="numpy") as loader,
        pytest.raises(ChunkError, match=r"'a/c/0'"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_in_the_place_of_metadata(tmp_path: Path, zarr_format: int, impostor: str) -> None:
    dataset = xr.Dataset({"a": (("x",), np.arange(8.0))}, coords={"x": np.arange(8)})
    keys = {
        2: [".zgroup", ".zmetadata", ".zattrs", "a/.zarray", "a/.zattrs"],
        3: ["zarr.json", "a/zarr.json", "x/zarr.json"],
    }[zarr_format]
    for number, key in enumerate(keys):
        path = tmp_path / f"{number}.zarr"
        dataset.to_zarr(path, zarr_format=zarr_format, consolidated=key == ".zmetadata")
        assert (path / key).exists()
        replace(path / key, impostor)
        for source in (path, LocalStore(path, read_only=True)):
            with pytest.raises(XloaderError, match=f"there is a {impostor} .*{key}.*To mend it: "):
                xloader.open(source)


def test_in_the_place_of_labels(tmp_path: Path, impostor: str) -> None:
    dataset = xr.Dataset({"a": (("x",), np.arange(8.0))}, coords={"x": np.arange(8)})
    dataset.to_zarr(tmp_path / "a.zarr", zarr_format=3, consolidated=False)
    replace(tmp_path / "a.zarr/x/c/0", impostor)
    with pytest.raises(XloaderError, match=f"there is a {impostor} "):
        xloader.open(tmp_path / "a.zarr").sel(x=slice(1, 3))


def test_in_the_place_of_a_store(tmp_path: Path, impostor: str) -> None:
    for name in ("a.nc", "a.zip", "a.zarr"):
        IMPOSTORS[impostor](tmp_path / name)
        with pytest.raises(XloaderError, match=f"there is a {impostor} .*{name}"):
            xloader.open(tmp_path / name)


def test_a_file_on_which_another_process_has_a_lease_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chunk").write_bytes(b"stored")
    really_open, refused = os.open, []

    def open_leased(path: str, flags: int) -> int:
        if flags & os.O_NONBLOCK:
            refused.append(path)
            raise BlockingIOError
        return really_open(path, flags)

    monkeypatch.setattr(object_readers, "find_function", lambda *_: None)
    monkeypatch.setattr(object_readers.os, "open", open_leased)
    data = object_readers.Files(str(tmp_path)).get("chunk")
    assert data is not None
    assert data.tobytes() == b"stored"
    assert refused
