"""Impossible metadata is refused when a store is opened, before anything is allocated from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.errors import MemoryBudgetError, UnsupportedDataError
from xloader.sources.zarr import stored_grid
from xloader.testing import write_store

DATASET = xr.Dataset({"t": (("time", "x"), np.arange(60, dtype="f4").reshape(20, 3))})


def change(path: Path, **changes: Any) -> None:
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, **changes}))


def regular(*shape: int) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": shape}}


@pytest.mark.parametrize("size", [2**60, 2**63, 10**30])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chunks_that_are_too_large(tmp_path: Path, zarr_format: int, size: int) -> None:
    path = tmp_path / "a.zarr"
    write_store(DATASET, {"t": (4, 3)}, path, zarr_format=zarr_format)
    if zarr_format == 2:
        change(path / "t/.zarray", chunks=[4, size])
    else:
        change(path / "t/zarr.json", chunk_grid=regular(4, size))
    told = rf"array 't' has chunks that are too large. Given: shape \(4, {size}\), 4 bytes each"
    with pytest.raises(UnsupportedDataError, match=rf"{told}.*Allowed: up to 2\*\*60.*To mend it"):
        xloader.open(path)


def test_a_chunk_far_larger_than_its_array_is_a_matter_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    write_store(DATASET, {"t": (4, 3)}, path)
    change(path / "t/zarr.json", chunk_grid=regular(2**40, 3))
    samples = xloader.open(path).window(time=2)
    with pytest.raises(MemoryBudgetError):
        samples.loader(output="numpy")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"shape": [2**61, 3]}, "array 't' is too large. Given: shape .*To mend"),
        (
            {"chunk_grid": regular(4 * 10**8 + 4, 3)},
            "array 't' has shards with too many chunks. Given: .*Allowed: up to 100000000 chunks",
        ),
    ],
    ids=["array", "shards"],
)
def test_what_else_is_too_large(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    encoding = {"t": {"shards": {"shape": (8, 3), "index_location": "start"}}}
    write_store(DATASET, {"t": (4, 3)}, tmp_path / "a.zarr", encoding=encoding)
    change(tmp_path / "a.zarr/t/zarr.json", **changes)
    with pytest.raises(UnsupportedDataError, match=told):
        xloader.open(tmp_path / "a.zarr")


def test_sizes_that_repeat_without_end() -> None:
    with pytest.raises(UnsupportedDataError, match=r"too many chunks.*Given: 10\d{14} chunks"):
        stored_grid._expanded([2, [3, 10**15]])
    assert stored_grid._expanded([2, [3, 2], 4]) == (2, 3, 3, 4)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
@pytest.mark.parametrize(
    ("codec", "settings"),
    [
        ("delta", {}),
        ("delta", {"dtype": "wibble"}),
        ("fixedscaleoffset", {}),
        ("quantize", {}),
        ("astype", {"encode_dtype": "float32", "decode_dtype": "wibble"}),
        ("bitround", {}),
    ],
)
def test_codecs_that_cannot_be_made(tmp_path: Path, codec: str, settings: dict[str, Any]) -> None:
    path = tmp_path / "a.zarr"
    write_store(DATASET, {"t": (4, 3)}, path)
    codecs = json.loads((path / "t/zarr.json").read_text())["codecs"]
    named = {"name": f"numcodecs.{codec}", "configuration": settings}
    change(path / "t/zarr.json", codecs=[named, *codecs])
    told = f"array 't' has a codec with invalid settings .*Given: .*{codec}.*To mend"
    with pytest.raises(UnsupportedDataError, match=told):
        xloader.open(path)


def test_a_codec_that_cannot_be_made_of_version_2(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    encoding = {"t": {"filters": [numcodecs.Delta("<f4")], "compressors": None}}
    write_store(DATASET, {"t": (4, 3)}, path, zarr_format=2, encoding=encoding)
    change(path / "t/.zarray", filters=[{"id": "delta"}])
    with pytest.raises(UnsupportedDataError, match="dtype"):
        xloader.open(path)
