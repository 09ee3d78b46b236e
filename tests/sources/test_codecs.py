"""Every codec that xloader decodes gives the bits that zarr-python reads, for every dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs.numcodecs as wrapped
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.storage import MemoryStore

from tests.sources import kinds
from xloader.sources.base import Read
from xloader.sources.open.open_source import open_source
from xloader.sources.zarr.stored_array import StoredArray
from xloader.sources.zarr.zarr_source import ZarrSource

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")

SHAPE, CHUNKS, SHARDS = (5, 7), (3, 4), (3, 8)
INTS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
FLOATS = ("f2", "f4", "f8")
NUMBERS = (*INTS, *FLOATS)
EVERY = ("b1", *NUMBERS)
SIZES = ("b1", "i2", "u4", "f8")
"""A dtype of each size, for codecs that see bytes only."""


@dataclass(frozen=True)
class Case:
    """The codecs of an array, and the dtypes and byte orders that it is tried with."""

    filters: Callable[[str], list[Any]] = lambda dtype: []
    compressors: Callable[[str], list[Any]] = lambda dtype: []
    dtypes: tuple[str, ...] = SIZES
    endians: str = "<>"
    is_small: bool = False  # Values for filters that compute: no NaN, no overflow.


def of(*codecs: Any) -> Callable[[str], list[Any]]:
    return lambda dtype: list(codecs)


def each(*makers: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda dtype: [make(dtype) for make in makers]


def size_of(dtype: str) -> int:
    return np.dtype(dtype).itemsize


V2: dict[str, Case] = {
    "none": Case(dtypes=EVERY),
    "blosc": Case(compressors=of(numcodecs.Blosc("zstd", shuffle=1))),
    "blosc-lz4-bits": Case(compressors=of(numcodecs.Blosc("lz4", shuffle=2))),
    "blosc-zlib": Case(compressors=of(numcodecs.Blosc("zlib", shuffle=0))),
    "zstd": Case(compressors=of(numcodecs.Zstd(3))),
    "zstd-checksum": Case(compressors=of(numcodecs.Zstd(1, checksum=True))),
    "lz4": Case(compressors=of(numcodecs.LZ4())),
    "gzip": Case(compressors=of(numcodecs.GZip(1))),
    "zlib": Case(compressors=of(numcodecs.Zlib(1))),
    "bz2": Case(compressors=of(numcodecs.BZ2(1))),
    "shuffle": Case(each(lambda d: numcodecs.Shuffle(size_of(d)))),
    "shuffle-zlib": Case(each(lambda d: numcodecs.Shuffle(size_of(d))), of(numcodecs.Zlib())),
    "crc32": Case(of(numcodecs.CRC32())),
    "crc32-at-end-zstd": Case(of(numcodecs.CRC32(location="end")), of(numcodecs.Zstd())),
    "adler32": Case(of(numcodecs.Adler32()), of(numcodecs.Zlib())),
    "crc32c": Case(of(numcodecs.checksum32.CRC32C()), of(numcodecs.LZ4())),
    "fletcher32": Case(of(numcodecs.Fletcher32()), of(numcodecs.Blosc())),
    "zlib-filter-crc32": Case(of(numcodecs.Zlib(), numcodecs.CRC32())),
    "zlib-filter-shuffle": Case(of(numcodecs.Zlib(), numcodecs.Shuffle(1))),
    "delta": Case(each(numcodecs.Delta), of(numcodecs.Zstd()), NUMBERS, is_small=True),
    "delta-widens": Case(
        each(lambda d: numcodecs.Delta(d, astype="<i8")), of(), INTS[:3], is_small=True
    ),
    "delta-shuffle-crc32": Case(
        each(numcodecs.Delta, lambda d: numcodecs.Shuffle(size_of(d)), lambda d: numcodecs.CRC32()),
        of(numcodecs.Zlib()),
        NUMBERS,
        is_small=True,
    ),
    "fixedscaleoffset": Case(
        each(lambda d: numcodecs.FixedScaleOffset(offset=2, scale=4, dtype=d, astype="<i2")),
        of(numcodecs.Blosc()),
        FLOATS,
        is_small=True,
    ),
    "fixedscaleoffset-delta": Case(
        each(
            lambda d: numcodecs.FixedScaleOffset(offset=2, scale=4, dtype=d, astype="<i4"),
            lambda d: numcodecs.Delta("<i4", astype="<i2"),
        ),
        of(numcodecs.Zlib()),
        FLOATS,
        is_small=True,
    ),
    "quantize": Case(
        each(lambda d: numcodecs.Quantize(2, d)), of(numcodecs.Zstd()), FLOATS, is_small=True
    ),
    "quantize-narrows": Case(
        each(lambda d: numcodecs.Quantize(2, d, astype="<f4")), of(), ("f8",), is_small=True
    ),
    "bitround": Case(
        of(numcodecs.bitround.BitRound(5)), of(numcodecs.Zstd()), FLOATS, "<", is_small=True
    ),
    "astype": Case(
        each(lambda d: numcodecs.AsType("<i4", d)), of(numcodecs.LZ4()), NUMBERS, is_small=True
    ),
    "packbits": Case(of(numcodecs.PackBits()), of(numcodecs.Zlib()), ("b1",)),
    "packbits-alone": Case(of(numcodecs.PackBits()), of(), ("b1",)),
}

SWAPPED = TransposeCodec(order=(1, 0))

V3: dict[str, Case] = {
    "none": Case(dtypes=EVERY),
    "blosc": Case(compressors=of(BloscCodec(cname="zstd", shuffle="shuffle"))),
    "blosc-lz4-bits": Case(compressors=of(BloscCodec(cname="lz4", shuffle="bitshuffle"))),
    "blosc-zlib": Case(compressors=of(BloscCodec(cname="zlib", shuffle="noshuffle"))),
    "zstd": Case(compressors=of(ZstdCodec(level=3, checksum=True))),
    "gzip": Case(compressors=of(GzipCodec())),
    "crc32c": Case(compressors=of(Crc32cCodec())),
    "crc32c-last": Case(compressors=of(ZstdCodec(), Crc32cCodec())),
    "crc32c-first": Case(compressors=of(Crc32cCodec(), BloscCodec())),
    "crc32c-all-round": Case(compressors=of(Crc32cCodec(), GzipCodec(), Crc32cCodec())),
    "transpose": Case(of(SWAPPED), of(BloscCodec())),
    "transpose-twice": Case(of(SWAPPED, SWAPPED), of(Crc32cCodec())),
    "n-blosc": Case(compressors=lambda d: [wrapped.Blosc(cname="lz4")]),
    "n-zstd": Case(compressors=lambda d: [wrapped.Zstd(level=1)]),
    "n-lz4": Case(compressors=lambda d: [wrapped.LZ4()]),
    "n-gzip": Case(compressors=lambda d: [wrapped.GZip()]),
    "n-zlib": Case(compressors=lambda d: [wrapped.Zlib()]),
    "n-bz2": Case(compressors=lambda d: [wrapped.BZ2()]),
    "n-crc32-n-zlib": Case(compressors=lambda d: [wrapped.CRC32(), wrapped.Zlib()]),
    "n-crc32c": Case(compressors=lambda d: [wrapped.CRC32C(location="start")]),
    "n-adler32": Case(compressors=lambda d: [wrapped.LZ4(), wrapped.Adler32()]),
    "n-fletcher32": Case(compressors=lambda d: [wrapped.Fletcher32(), ZstdCodec()]),
    "n-shuffle": Case(compressors=lambda d: [wrapped.Shuffle(elementsize=size_of(d))]),
    "n-shuffle-zlib": Case(compressors=lambda d: [wrapped.Shuffle(), wrapped.Zlib()]),
    "zlib-n-shuffle": Case(compressors=lambda d: [wrapped.Zlib(), wrapped.Shuffle(elementsize=1)]),
    "transpose-n-delta": Case(
        lambda d: [SWAPPED, wrapped.Delta(dtype=d)], of(ZstdCodec()), NUMBERS, "<", is_small=True
    ),
    "n-delta": Case(
        lambda d: [wrapped.Delta(dtype=d)], of(Crc32cCodec()), NUMBERS, "<", is_small=True
    ),
    "n-fixedscaleoffset": Case(
        lambda d: [wrapped.FixedScaleOffset(offset=2, scale=4, dtype=d, astype="i2")],
        of(BloscCodec()),
        FLOATS,
        "<",
        is_small=True,
    ),
    "n-quantize": Case(
        lambda d: [wrapped.Quantize(digits=2, dtype=d)], of(), FLOATS, "<", is_small=True
    ),
    "n-bitround-transpose": Case(
        lambda d: [wrapped.BitRound(keepbits=10), SWAPPED], of(ZstdCodec()), FLOATS, is_small=True
    ),
    "n-astype": Case(
        lambda d: [wrapped.AsType(encode_dtype="i2", decode_dtype=d)],
        of(ZstdCodec()),
        ("i4", "i8", "f4", "f8"),
        "<",
        is_small=True,
    ),
    "n-packbits": Case(lambda d: [wrapped.PackBits()], of(ZstdCodec()), ("b1",)),
}

SHARDED = [
    *("none", "blosc", "crc32c-all-round", "transpose", "transpose-n-delta"),
    *("n-crc32-n-zlib", "zlib-n-shuffle", "n-bitround-transpose", "n-packbits"),
]
"""Chains whose parts lie before, at and behind the bytes of an inner chunk."""

# Combinations that zarr-python or numcodecs cannot write or read back themselves are left out.
# numcodecs does not encode bitround of big-endian values. For other filters with big-endian bytes
# in v3, zarr passes them the swapped bytes. The rest are bitround, quantize and fixedscaleoffset of
# integers, and filters that flatten an array before transpose.


def values_of(dtype: str, is_small: bool) -> np.ndarray:
    rng = np.random.default_rng(7)
    num = int(np.prod(SHAPE))
    if dtype == "b1":
        return (rng.integers(0, 2, num) == 1).reshape(SHAPE)
    if is_small:
        return rng.integers(0, 8, num).astype(dtype).reshape(SHAPE)
    bits = rng.integers(0, 256, num * size_of(dtype), np.uint8)
    return bits.view(dtype).reshape(SHAPE)


def layouts(case: Case) -> Iterator[tuple[str, str]]:
    for dtype in case.dtypes:
        for endian in case.endians if size_of(dtype) > 1 else "<":
            yield dtype, endian


def write(group: zarr.Group, name: str, dtype: str, case: Case, **kwargs: Any) -> None:
    dimensions = {"attributes": {"_ARRAY_DIMENSIONS": ["y", "x"]}}
    if group.metadata.zarr_format == 3:
        dimensions = {"dimension_names": ("y", "x")}
    array = group.create_array(
        name,
        shape=SHAPE,
        chunks=CHUNKS,
        dtype=dtype,
        fill_value=True if dtype.endswith("b1") else 3,
        filters=case.filters(dtype) or None,
        compressors=case.compressors(dtype) or None,
        **dimensions,
        **kwargs,
    )
    values = values_of(dtype[-2:], case.is_small)
    # The last chunk stays unwritten, to have an absent one.
    array[:3] = values[:3]
    array[3:, :4] = values[3:, :4]


def read_all(source: ZarrSource, name: str) -> np.ndarray:
    """Read all chunks, the chunks of one shard together."""
    variable = source.variables[name]
    whole = np.empty(variable.shape, variable.stored_dtype)
    grid = [-(-size // chunk) for size, chunk in zip(SHAPE, CHUNKS, strict=True)]
    bundles: dict[object, list[tuple[Read, np.ndarray]]] = {}
    for chunk in np.ndindex(*grid):
        out = whole[tuple(slice(i * n, (i + 1) * n) for i, n in zip(chunk, CHUNKS, strict=True))]
        read = Read(name, chunk, tuple(slice(0, n) for n in out.shape))
        bundles.setdefault(source.bundle_of(name, chunk), []).append((read, out))
    for bundle in bundles.values():
        source.fetch([read for read, _ in bundle]).decode([out for _, out in bundle])
    return whole


def compare(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(store, mask_and_scale=False, on_missing="fill")
    assert isinstance(source, ZarrSource)
    group = zarr.open_group(store, mode="r")
    expected = {name: group[name][:] for name in source.variables}
    assert len(expected) == len(list(group.array_keys()))
    with monkeypatch.context() as patch:
        patch.setattr(StoredArray, "index", lambda *_: pytest.fail("zarr's own indexing"))
        for name, values in expected.items():
            assert source.path_of(name).startswith("direct: "), source.path_of(name)
            native = values.astype(values.dtype.newbyteorder("="))
            # Compare bits, because random floats hold NaNs of every kind.
            assert read_all(source, name).tobytes() == native.tobytes(), name
            assert source.num_missing > 0
            # A part of a chunk, into an array in Fortran order.
            out = np.empty((2, 2), native.dtype, order="F")
            kinds.read_into(source, name, (0, 0), (np.array([0, 2]), slice(1, 4, 2)), out)
            np.testing.assert_array_equal(out, native[0:3:2, 1:4:2])


@pytest.mark.parametrize("name", V2)
def test_v2(name: str, monkeypatch: pytest.MonkeyPatch):
    case, store = V2[name], MemoryStore()
    group = zarr.create_group(store, zarr_format=2)
    for number, (dtype, endian) in enumerate(layouts(case)):
        stored = np.dtype(dtype).newbyteorder(endian).str
        keys = {"name": "v2", "separator": "./"[number % 2]}
        order, name = "CF"[number // 2 % 2], f"{dtype}{ord(endian)}"
        write(group, name, stored, case, order=order, chunk_key_encoding=keys)
    compare(store, monkeypatch)


@pytest.mark.parametrize("name", V3)
def test_v3(name: str, monkeypatch: pytest.MonkeyPatch):
    write_v3(V3[name], monkeypatch)


@pytest.mark.parametrize("name", SHARDED)
def test_sharded(name: str, monkeypatch: pytest.MonkeyPatch):
    write_v3(V3[name], monkeypatch, shards=SHARDS)


def write_v3(case: Case, monkeypatch: pytest.MonkeyPatch, **kwargs: Any) -> None:
    store = MemoryStore()
    group = zarr.create_group(store, zarr_format=3)
    for dtype, endian in layouts(case):
        more = dict(kwargs)
        if size_of(dtype) > 1:
            more["serializer"] = BytesCodec(endian="little" if endian == "<" else "big")
        write(group, f"{dtype}{ord(endian)}", dtype, case, **more)
    compare(store, monkeypatch)
