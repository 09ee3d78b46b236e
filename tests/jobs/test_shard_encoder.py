"""Shards of any shape and codecs are read by zarr as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

import xloader

COMPRESSORS = [
    None,
    "zstd",
    "lz4",
    ZstdCodec(level=1, checksum=True),
    BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle"),
    BloscCodec(cname="lz4", clevel=1, shuffle="noshuffle", blocksize=512),
    [Crc32cCodec(), ZstdCodec(level=2)],
    GzipCodec(level=1),
]


@given(data=st.data())
def test_zarr_reads_what_was_encoded(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    chunks = [data.draw(st.integers(1, size)) for size in shape]
    shards = [size * data.draw(st.integers(1, 3)) for size in chunks]
    dtype = data.draw(st.sampled_from(["f4", "f8", ">f4", "i2", "u1", "bool"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    values = rng.integers(0, 2, shape).astype(dtype) * rng.integers(1, 99)
    ds = xr.Dataset({"v": (tuple("abc"[: len(shape)]), values.astype(dtype))})
    held: dict[str, Any] = {}
    dims = [str(dim) for dim in ds.v.dims]
    xloader.open(ds).window(a=1).materialize(
        zarr.storage.MemoryStore(held),
        chunks=dict(zip(dims, chunks, strict=True)),
        shards=data.draw(st.sampled_from([None, dict(zip(dims, shards, strict=True))])),
        compressor=data.draw(st.sampled_from(COMPRESSORS)),
        checksum=data.draw(st.booleans()),
    )
    found = zarr.open_group(zarr.storage.MemoryStore(held), mode="r")["v"]
    np.testing.assert_array_equal(found[...], ds.v)
