"""Codecs that are left to zarr, and codecs and keys that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from packaging.version import Version
from zarr.buffer import default_buffer_prototype
from zarr.codecs import BytesCodec, GzipCodec, ZstdCodec
from zarr.errors import ZarrUserWarning
from zarr.storage import MemoryStore

from tests.sources import kinds
from tests.sources.test_codecs import CHUNKS, SHAPE, read_all, values_of
from xloader.errors import UnsupportedDataError, XloaderError
from xloader.sources.open.open_source import open_source
from xloader.sources.zarr.parse_codecs import check_codecs, sharding_of, unknown_codec_error
from xloader.testing import CountingStore

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")

ZARR = Version(zarr.__version__)

LEFT_TO_ZARR: dict[str, dict[str, Any]] = {
    "lzma": {"zarr_format": 2, "compressors": [numcodecs.LZMA()]},
    "jenkins": {"zarr_format": 2, "filters": [numcodecs.checksum32.JenkinsLookup3()]},
    "two-compressors": {"zarr_format": 3, "compressors": [ZstdCodec(), GzipCodec()]},
    "two-compressors-v2": {
        "zarr_format": 2,
        "filters": [numcodecs.Zlib()],
        "compressors": [numcodecs.BZ2()],
    },
    "delta-after-shuffle": {
        "zarr_format": 2,
        "filters": [numcodecs.Shuffle(8), numcodecs.Delta("u1")],
    },
    "nested-shards": {
        "zarr_format": 3,
        "serializer": zarr.codecs.ShardingCodec(
            chunk_shape=(3, 4), codecs=[zarr.codecs.ShardingCodec(chunk_shape=(3, 2))]
        ),
        "compressors": [],
    },
}


class Doubled(numcodecs.Zlib):
    """A user's codec that replaces a known one."""

    def decode(self, buf: Any, out: Any = None) -> Any:
        return numcodecs.compat.ndarray_copy(np.frombuffer(super().decode(buf), "f8") * 2, out)


@pytest.mark.parametrize("name", LEFT_TO_ZARR)
def test_unknown_chains_are_left_to_zarr(name: str):
    store, kwargs = MemoryStore(), dict(LEFT_TO_ZARR[name])
    zarr_format = kwargs.pop("zarr_format")
    group = zarr.create_group(store, zarr_format=zarr_format)
    array = make(group, **kwargs)
    values = values_of("f8", True)
    array[:] = values
    source = open_source(store)
    assert source.path_of("a").startswith("chunk by chunk through zarr's own indexing: ")
    np.testing.assert_array_equal(read_all(source, "a"), values)


def test_a_compressed_shard_index_is_left_to_zarr():
    # zarr cannot read such an index either, and newer releases refuse to make one.
    chunks = {"compressors": [], "serializer": zarr.codecs.ShardingCodec(chunk_shape=(3, 2))}
    metadata = make(zarr.create_group(MemoryStore()), **chunks).metadata
    assert sharding_of(metadata, (2, 2)) is not None
    object.__setattr__(metadata.codecs[0], "index_codecs", (BytesCodec(), GzipCodec()))
    assert sharding_of(metadata, (2, 2)) is None


def test_a_class_in_the_place_of_a_known_one_is_left_to_zarr(monkeypatch: pytest.MonkeyPatch):
    store = MemoryStore()
    values = values_of("f8", True)
    make(zarr.create_group(store, zarr_format=2), compressors=[numcodecs.Zlib()])[:] = values
    monkeypatch.setitem(numcodecs.registry.codec_registry, "zlib", Doubled)
    source = open_source(store)
    assert source.path_of("a").startswith("chunk by chunk through zarr's own indexing: ")
    np.testing.assert_array_equal(read_all(source, "a"), values * 2)


def make(group: zarr.Group, **kwargs: Any) -> zarr.Array[Any]:
    dimensions = {"attributes": {"_ARRAY_DIMENSIONS": ["y", "x"]}}
    if group.metadata.zarr_format == 3:
        dimensions = {"dimension_names": ("y", "x")}
    kwargs.setdefault("compressors", None)
    return group.create_array(
        "a", shape=SHAPE, chunks=CHUNKS, dtype="f8", fill_value=0, **dimensions, **kwargs
    )


def put(store: MemoryStore, key: str, document: object) -> None:
    buffer = default_buffer_prototype().buffer
    store._store_dict[key] = buffer.from_bytes(json.dumps(document).encode())


def v2_store(*, consolidated: bool = False, name: str = "a", **changes: Any) -> MemoryStore:
    array = {
        "zarr_format": 2,
        "shape": [4],
        "chunks": [2],
        "dtype": "<f4",
        "compressor": None,
        "fill_value": 0,
        "order": "C",
        "filters": None,
        **changes,
    }
    documents = {
        ".zgroup": {"zarr_format": 2},
        f"{name}/.zarray": array,
        f"{name}/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]},
    }
    store = MemoryStore()
    for key, document in documents.items():
        put(store, key, document)
    if consolidated:
        put(store, ".zmetadata", {"zarr_consolidated_format": 1, "metadata": documents})
    return store


def v3_store(
    codecs: list[dict[str, Any]], *, consolidated: bool = False, name: str = "a"
) -> MemoryStore:
    array = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": codecs,
        "dimension_names": ["x"],
    }
    group: dict[str, Any] = {"zarr_format": 3, "node_type": "group"}
    if consolidated:
        inline = {"kind": "inline", "must_understand": False, "metadata": {name: array}}
        group["consolidated_metadata"] = inline
    store = MemoryStore()
    put(store, "zarr.json", group)
    put(store, f"{name}/zarr.json", array)
    return store


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


def sharding(codecs: list[dict[str, Any]]) -> dict[str, Any]:
    configuration = {"chunk_shape": [1], "codecs": codecs, "index_codecs": [BYTES]}
    return {"name": "sharding_indexed", "configuration": configuration}


@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize(
    ("make_store", "codec"),
    [
        (lambda c: v2_store(compressor={"id": "wibble"}, consolidated=c), "wibble"),
        (lambda c: v2_store(filters=[{"id": "wibble", "level": 3}], consolidated=c), "wibble"),
        (lambda c: v3_store([BYTES, {"name": "wibble"}], consolidated=c), "wibble"),
        (lambda c: v3_store([sharding([BYTES, {"name": "wibble"}])], consolidated=c), "wibble"),
        (lambda c: v2_store(filters=[{"id": "pickle"}], consolidated=c), "pickle"),
        (lambda c: v2_store(compressor={"id": "pickle"}, consolidated=c), "pickle"),
        (lambda c: v2_store(filters=[{"id": "json2"}], consolidated=c), "json2"),
        (lambda c: v3_store([BYTES, {"name": "numcodecs.pickle"}], consolidated=c), "pickle"),
    ],
    ids=["v2", "v2-filter", "v3", "v3-shard", "pickle", "pickle-last", "json", "v3-pickle"],
)
def test_what_zarr_says_of_a_codec_it_does_not_know(
    make_store: Callable[[bool], MemoryStore], codec: str, consolidated: bool
):
    with pytest.raises((ValueError, TypeError)) as raised:
        open_source(make_store(consolidated))
    error = raised.value
    if not isinstance(error, UnsupportedDataError):
        error = unknown_codec_error(error, "a.zarr")
    assert isinstance(error, UnsupportedDataError)
    assert f"{codec}'" in str(error)
    is_known = codec != "wibble"
    assert ("may run code" in str(error)) == is_known


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chunks": None}, "cannot make a dataset"),
        ({"chunks": [-2]}, "cannot make a dataset"),
        ({"shape": [2**70]}, "cannot make a dataset"),
        ({"dtype": "<i4", "fill_value": 2**40}, "cannot make a dataset"),
        ({"fill_value": "x"}, "cannot make a dataset"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_metadata_that_cannot_be_is_refused(changes: dict[str, Any], words: str):
    with pytest.raises(UnsupportedDataError, match=words):
        open_source(v2_store(**changes))


def test_chunks_that_hold_nothing_are_refused_or_repaired_with_a_warning():
    store = v2_store(chunks=[0])
    if Version("3.4") > ZARR:
        with pytest.raises(UnsupportedDataError, match=r"'a' has empty chunks.*\(0,\)"):
            open_source(store)
        return
    # Newer releases of zarr read them as chunks of one element.
    with pytest.warns(ZarrUserWarning, match=r"chunk shape \[0\] is invalid"):
        source = open_source(store)
    assert source.variables["a"].chunks == (1,)


def test_other_errors_are_not_about_codecs():
    assert unknown_codec_error(ValueError("no such array"), "a.zarr") is None
    assert unknown_codec_error(KeyError("wibble"), "a.zarr") is None


@pytest.mark.parametrize(
    ("codec", "package"),
    [("grib", "kerchunk"), ("gribscan.rawgrib", "gribscan"), ("imagecodecs_jpegxl", "imagecodecs")],
)
def test_the_package_of_a_known_codec_is_named(codec: str, package: str):
    with pytest.raises(
        UnsupportedDataError, match=f"pip install {package}$|pip install {package}\\."
    ):
        open_source(v2_store(filters=[{"id": codec}]))


@pytest.mark.parametrize("id_", ["pickle", "msgpack2", "categorize"])
def test_codecs_of_objects_are_refused(id_: str):
    # zarr has no dtype for most of these codecs. A codec that gets past zarr is refused here.
    class Disguised(numcodecs.abc.Codec):
        codec_id = id_

        def encode(self, buf: Any) -> Any:
            return buf

        def decode(self, buf: Any, out: Any = None) -> Any:
            pytest.fail("it was run")

    array = make(zarr.create_group(MemoryStore(), zarr_format=2), filters=[Disguised()])
    with pytest.raises(UnsupportedDataError, match=f"array 'a' .*may run code.*{id_!r}"):
        check_codecs(array)


def test_a_codec_of_objects_within_a_shard_is_refused():
    store = v3_store([sharding([{"name": "vlen-bytes"}])])
    with pytest.raises(UnsupportedDataError, match=r"array 'a' .*'vlen-bytes'"):
        open_source(store)


def test_keys_that_may_leave_the_store_are_refused():
    with pytest.raises(UnsupportedDataError, match="keys that may point outside the store"):
        open_source(v3_store([BYTES], name="a\0b"))


# zarr leaves a coroutine without awaiting it if a name is not allowed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a\\..\\..\\x", "./x"])
@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("version", [2, 3])
def test_no_key_leaves_the_store(name: str, consolidated: bool, version: int):
    make_one = v2_store if version == 2 else partial(v3_store, [BYTES])
    store = CountingStore(make_one(consolidated=consolidated, name=name))
    try:
        source = open_source(store, on_missing="fill")
    except (XloaderError, ValueError, KeyError, FileNotFoundError):
        source = None
    if source is not None:
        for variable in source.variables:
            kinds.read_into(source, variable, (0,), (slice(0, 2),), np.empty(2, "f4"))
    for key in [*store.reads, *store.metadata_reads]:
        assert ".." not in key.split("/")
        assert not key.startswith("/")
