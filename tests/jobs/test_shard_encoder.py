"""Shards that are put together here are what zarr reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

import xloader
from xloader.jobs.materialize.section_writer import _codecs_of

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


@pytest.mark.parametrize("compressor", COMPRESSORS[:-1])
@pytest.mark.parametrize("shards", [None, {"x": 8}])
def test_usual_codecs_go_past_the_event_loop(compressor: Any, shards: Any) -> None:
    ds = xr.Dataset({"v": ("x", np.arange(20.0))})
    held: dict[str, Any] = {}
    store = zarr.storage.MemoryStore(held)
    xloader.open(ds).window(x=1).materialize(
        store, chunks={"x": 4}, shards=shards, compressor=compressor, checksum=not shards
    )
    metadata = zarr.open_group(store, mode="r")["v"].metadata.to_dict()
    assert _codecs_of(metadata) is not None
    reader = xloader.open(store)
    path = reader.recipe.source.path_of("v")
    assert path.startswith("direct")
    assert ("crc32c" in path) == (not shards or isinstance(compressor, list))
    np.testing.assert_array_equal(reader.window(x=1).to_xarray(np.arange(20)).v[:, 0], ds.v)
