"""Kinds of source over every kind of store, for the tests that run over `kinds.KINDS`.

Each kind writes the same Zarr store, puts it where this kind of store lies, and opens it there.
"""

from __future__ import annotations

import base64
import importlib.util
import itertools
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xarray as xr
import zarr
from zarr.storage import FsspecStore, ObjectStore, ZipStore

from tests.sources import servers
from tests.sources.kinds import CHUNKS, Opened, numeric
from xloader.sources.open.open_source import open_source
from xloader.testing import write_store

_NUMBERS = itertools.count()


def write(folder: Path, dataset: xr.Dataset) -> Path:
    write_store(numeric(dataset), CHUNKS, folder / "store.zarr")
    return folder / "store.zarr"


def opened(dataset: xr.Dataset, make: Callable[[], Any], **kwargs: Any) -> Opened:
    return Opened(
        open_source(make(), **kwargs), numeric(dataset), lambda: open_source(make(), **kwargs)
    )


def unique(name: str) -> str:
    return f"{name}-{next(_NUMBERS)}"


def zip_file(folder: Path, dataset: xr.Dataset) -> Path:
    path = folder / "store.zarr.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in (written := write(folder, dataset)).rglob("*"):
            archive.write(file, file.relative_to(written).as_posix())
    return path


def zip_path(folder: Path, dataset: xr.Dataset) -> Opened:
    path = zip_file(folder, dataset)
    return opened(dataset, lambda: path)


def zip_given(folder: Path, dataset: xr.Dataset) -> Opened:
    path = zip_file(folder, dataset)
    return opened(dataset, lambda: ZipStore(path, mode="r"))


def obstore_local(folder: Path, dataset: xr.Dataset) -> Opened:
    from obstore.store import LocalStore

    path = write(folder, dataset)
    return opened(dataset, lambda: LocalStore(str(path)))


def obstore_memory(folder: Path, dataset: xr.Dataset) -> Opened:
    from obstore.store import MemoryStore

    memory = MemoryStore()
    path = write(folder, dataset)
    for file in path.rglob("*"):
        if file.is_file():
            memory.put(file.relative_to(path).as_posix(), file.read_bytes())
    return opened(dataset, lambda: ObjectStore(memory))


def obstore_s3(folder: Path, dataset: xr.Dataset) -> Opened:
    from obstore.store import S3Store

    prefix = unique("obstore")
    servers.s3_upload(write(folder, dataset), prefix)
    return opened(
        dataset,
        lambda: S3Store(
            servers.BUCKET,
            prefix=prefix,
            endpoint=servers.s3_server(),
            region="us-east-1",
            access_key_id=servers.KEY,
            secret_access_key=servers.SECRET,
            client_options={"allow_http": True},
        ),
    )


def on_http(folder: Path, dataset: xr.Dataset, *, zarr_format: int = 3) -> str:
    root, url = servers.http_server()
    name = unique("store.zarr")
    write_store(numeric(dataset), CHUNKS, root / name, zarr_format=zarr_format)
    return f"{url}/{name}"


def obstore_http(folder: Path, dataset: xr.Dataset) -> Opened:
    from obstore.store import HTTPStore

    url = on_http(folder, dataset, zarr_format=2)
    # Plain HTTP offers no listing, so one object must hold all metadata.
    zarr.consolidate_metadata(str(servers.http_server()[0] / url.rpartition("/")[2]))
    return opened(dataset, lambda: HTTPStore.from_url(url, client_options={"allow_http": True}))


def fsspec_http(folder: Path, dataset: xr.Dataset) -> Opened:
    url = on_http(folder, dataset)
    return opened(dataset, lambda: url)


def fsspec_s3(folder: Path, dataset: xr.Dataset) -> Opened:
    prefix = unique("fsspec")
    servers.s3_upload(write(folder, dataset), prefix)
    return opened(
        dataset,
        lambda: f"s3://{servers.BUCKET}/{prefix}",
        storage_options=servers.s3_options(),
    )


def fsspec_memory(folder: Path, dataset: xr.Dataset) -> Opened:
    url = f"memory://{unique('store.zarr')}"
    numeric(dataset).to_zarr(
        FsspecStore.from_url(url),
        zarr_format=3,
        consolidated=False,
        write_empty_chunks=True,
        encoding={name: {"chunks": chunks} for name, chunks in CHUNKS.items()},
    )
    return opened(dataset, lambda: url)


def fsspec_mapping(folder: Path, dataset: xr.Dataset) -> Opened:
    import fsspec

    url = on_http(folder, dataset)
    return opened(dataset, lambda: fsspec.get_mapper(url))


def fsspec_references(folder: Path, dataset: xr.Dataset) -> Opened:
    """Open references as kerchunk makes them: metadata inline, chunks as ranges of one file."""
    path = write(folder, dataset)
    blob, references = bytearray(), {}
    for file in path.rglob("*"):
        key = file.relative_to(path).as_posix()
        if file.name == "zarr.json":
            references[key] = "base64:" + base64.b64encode(file.read_bytes()).decode()
        elif file.is_file():
            data = file.read_bytes()
            references[key] = ["{{u}}", len(blob), len(data)]
            blob += data
    root, url = servers.http_server()
    name = unique("blob")
    (root / name).write_bytes(blob)
    fo = {"version": 1, "templates": {"u": f"{url}/{name}"}, "refs": references}
    return opened(
        dataset,
        lambda: "reference://",
        storage_options={"fo": fo, "remote_protocol": "http"},
    )


def repository(folder: Path, dataset: xr.Dataset) -> Any:
    import icechunk

    path = folder / "repository"
    shutil.rmtree(path, ignore_errors=True)
    made = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)))
    session = made.writable_session("main")
    numeric(dataset).to_zarr(
        session.store,
        zarr_format=3,
        consolidated=False,
        write_empty_chunks=True,
        encoding={name: {"chunks": chunks} for name, chunks in CHUNKS.items()},
    )
    session.commit("all of it")
    return made


def icechunk_repository(folder: Path, dataset: xr.Dataset) -> Opened:
    made = repository(folder, dataset)
    return opened(dataset, lambda: made)


def icechunk_session(folder: Path, dataset: xr.Dataset) -> Opened:
    made = repository(folder, dataset)
    return opened(dataset, lambda: made.readonly_session("main"))


def icechunk_writable(folder: Path, dataset: xr.Dataset) -> Opened:
    made = repository(folder, dataset)
    return opened(dataset, lambda: made.writable_session("main").store)


_OF_LIBRARY: dict[str, dict[str, Callable[[Path, xr.Dataset], Opened]]] = {
    "zarr": {"zip-path": zip_path, "zip-given": zip_given},
    "obstore": {
        "obstore-local": obstore_local,
        "obstore-memory": obstore_memory,
        "obstore-http": obstore_http,
    },
    "aiohttp": {
        "fsspec-http": fsspec_http,
        "fsspec-mapping": fsspec_mapping,
        "fsspec-references": fsspec_references,
    },
    "fsspec": {"fsspec-memory": fsspec_memory},
    "icechunk": {
        "icechunk-repository": icechunk_repository,
        "icechunk-session": icechunk_session,
        "icechunk-writable": icechunk_writable,
    },
}

STORE_KINDS = {
    name: kind
    for library, kinds in _OF_LIBRARY.items()
    if importlib.util.find_spec(library)
    for name, kind in kinds.items()
}

if importlib.util.find_spec("moto"):
    if importlib.util.find_spec("obstore"):
        STORE_KINDS["obstore-s3"] = obstore_s3
    if importlib.util.find_spec("s3fs"):
        STORE_KINDS["fsspec-s3"] = fsspec_s3
