"""Masks on disk: found again by fingerprint, and made again where anything changed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.jobs.valid import cache_files
from xloader.jobs.valid.cache_files import CacheFile, stamp_of_files
from xloader.testing import CountingStore, write_store


def make_dataset(seed: int = 0) -> xr.Dataset:
    rng = np.random.default_rng(seed)
    values = rng.random((40, 6)).astype("f4")
    values[rng.random(values.shape) < 0.1] = np.nan
    sea = rng.random(6) < 0.6
    return xr.Dataset({"sst": (("time", "x"), values), "sea": ("x", sea)})


CHUNKS = {"sst": (8, 6), "sea": (3,)}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "xloader" / "masks"


def test_a_mask_is_found_again(tmp_path: Path, cache: Path) -> None:
    write_store(make_dataset(), CHUNKS, tmp_path / "s")
    samples = xloader.open(tmp_path / "s").window(time=2)
    first = samples.is_valid("sst")
    assert first.num_reads == 5
    assert len(list(cache.glob("*"))) == 1
    again = xloader.open(tmp_path / "s").window(time=2).is_valid("sst")
    assert again.num_reads == 0
    assert again == first
    assert repr(again) == repr(first)
    # Transforms do not matter. Windows, fields, shares, selections and masks do.
    assert samples.fillna(0.0).is_valid("sst").num_reads == 0
    others = [
        samples.is_valid("sst", at_least=0.9),
        samples.is_valid("sst", mask="sea"),
        samples.is_valid("sst", mask=xr.DataArray([True] * 6, dims="x")),
        samples.is_valid("sst", mask=xr.DataArray([True] * 5 + [False], dims="x")),
        samples.select(range(5)).is_valid("sst"),
        samples.inputs("sst", time=0).is_valid("inputs"),
        xloader.open(tmp_path / "s").window(time=3).is_valid("sst"),
        xloader.open(tmp_path / "s").isel(x=slice(3)).window(time=2).is_valid("sst"),
    ]
    assert all(mask.num_reads for mask in others)
    assert len(list(cache.glob("*"))) == 1 + len(others)
    assert samples.is_valid("sst", cache=False).num_reads == 5


def test_another_store_of_the_same_shape_is_read(tmp_path: Path, cache: Path) -> None:
    for seed in range(2):
        write_store(make_dataset(seed), CHUNKS, tmp_path / f"s{seed}")
    masks = [xloader.open(tmp_path / f"s{seed}").window(time=2).is_valid() for seed in range(2)]
    assert [mask.num_reads for mask in masks] == [5, 5]
    assert masks[0] != masks[1]


def test_a_chunk_that_is_written_again_is_noticed(tmp_path: Path, cache: Path) -> None:
    """Metadata stay as they are, and only one file has another time."""
    write_store(make_dataset(0), CHUNKS, tmp_path / "s")
    write_store(make_dataset(1), CHUNKS, tmp_path / "other")
    before = xloader.open(tmp_path / "s").window(time=2).is_valid("sst")
    (part,) = [tmp_path / name / "sst" / "c" / "2" / "0" for name in ("other",)]
    target = tmp_path / "s" / "sst" / "c" / "2" / "0"
    target.write_bytes(part.read_bytes())
    os.utime(target, ns=(1, 1))
    after = xloader.open(tmp_path / "s").window(time=2).is_valid("sst")
    assert after.num_reads == 5
    assert after != before
    # Another variable's files do not matter.
    os.utime(tmp_path / "s" / "sea" / "c" / "0", ns=(1, 1))
    assert xloader.open(tmp_path / "s").window(time=2).is_valid("sst").num_reads == 0


@pytest.mark.parametrize("kind", ["memory", "dataset"])
def test_sources_without_files_are_kept_only_where_asked(
    kind: str, tmp_path: Path, cache: Path
) -> None:
    store = CountingStore(write_store(make_dataset(), CHUNKS))
    source = store if kind == "memory" else make_dataset()
    samples = xloader.open(source).window(time=2)
    for _ in range(2):
        assert samples.is_valid("sst").num_reads > 0
    assert not cache.exists()
    assert samples.is_valid("sst", cache=tmp_path / "own").num_reads > 0
    store.reset()
    assert samples.is_valid("sst", cache=tmp_path / "own").num_reads == 0
    assert store.num_reads == 0


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda body: body[:-3], id="cut short"),
        pytest.param(lambda body: body + b"12345678", id="too long"),
        pytest.param(lambda body: body[:-1] + bytes([body[-1] ^ 1]), id="another bit"),
        pytest.param(lambda body: body.replace(b'"version": 1', b'"version": 9'), id="newer"),
        pytest.param(lambda body: body.replace(b'"nbytes": 8', b'"nbytes": 9'), id="another size"),
        pytest.param(lambda body: b"[]\n" + body, id="another head"),
        pytest.param(lambda body: b"\xff\xfe" * 99, id="no head"),
        pytest.param(lambda body: b"", id="empty"),
    ],
)
def test_a_damaged_file_is_made_again(damage, tmp_path: Path, cache: Path) -> None:
    write_store(make_dataset(), CHUNKS, tmp_path / "s")
    samples = xloader.open(tmp_path / "s").window(time=2)
    first = samples.is_valid("sst")
    (path,) = cache.glob("*")
    body = path.read_bytes()
    path.write_bytes(damage(body))
    again = samples.is_valid("sst")
    assert again.num_reads == 5
    assert again == first
    assert path.read_bytes() == body


def test_what_killed_processes_had_begun_to_write_is_removed(tmp_path: Path) -> None:
    old, new = tmp_path / "ab12.part", tmp_path / "cd34.part"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 90_000,) * 2)
    CacheFile(tmp_path, "mask", "ef56").save(b"bits")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cd34.part", "ef56.mask"]


def test_a_folder_that_cannot_be_written_to_does_not_matter(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_store(make_dataset(), CHUNKS, tmp_path / "s")
    (tmp_path / "file").write_text("no folder")
    samples = xloader.open(tmp_path / "s").window(time=2)
    assert samples.is_valid("sst", cache=tmp_path / "file").num_reads == 5
    assert "is not kept, and will be computed again" in caplog.text


def test_files_that_were_used_longest_ago_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bits = bytes(800)
    CacheFile(tmp_path, "mask", "probe").save(bits)
    size = CacheFile(tmp_path, "mask", "probe").path.stat().st_size
    CacheFile(tmp_path, "mask", "probe").path.unlink()
    monkeypatch.setattr(cache_files, "_MOST_NBYTES", 3 * size + size // 2)
    for number in range(3):
        file = CacheFile(tmp_path, "mask", f"mask{number}")
        file.save(bits)
        os.utime(file.path, ns=(number, number))
    # A mask that is found counts as used.
    assert CacheFile(tmp_path, "mask", "mask0").load(800) is not None
    CacheFile(tmp_path, "mask", "mask3").save(bits)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["mask0", "mask2", "mask3"]
    monkeypatch.setattr(cache_files, "_MOST_NBYTES", size // 2)
    CacheFile(tmp_path, "mask", "mask4").save(bits)
    assert CacheFile(tmp_path, "mask", "mask4").load(800) is None


def test_stamps_of_files(tmp_path: Path) -> None:
    file = tmp_path / "a b.nc"
    file.write_bytes(b"1")
    stamp = stamp_of_files(str(file), ("t",))
    assert stamp == stamp_of_files(file.as_uri(), ("t",)) != stamp_of_files(str(tmp_path), ("t",))
    file.write_bytes(b"12")
    assert stamp_of_files(str(file), ("t",)) != stamp
    assert stamp_of_files(f"an open Dataset of {file}", ("t",)) is None
    assert stamp_of_files("s3://bucket/store.zarr", ("t",)) is None
