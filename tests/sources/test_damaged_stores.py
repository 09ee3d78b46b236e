"""Stores with random damage end in the values that zarr reads, or in an error of xloader.

The suite tries a few dozen. To try more, with a library that is compiled with sanitizers::

    CC="cc -g -fsanitize=address,undefined" pip install -e .
    export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=4
    export LD_PRELOAD="$(cc -print-file-name=libasan.so) $(cc -print-file-name=libubsan.so)"
    python -m tests.sources.test_damaged_stores 1000

Memory may grow by no more than the budget and 64 MiB, whatever sizes a store claims.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numcodecs
import numpy as np
import pytest
import xarray as xr
from google_crc32c import value as crc32c
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.storage import FsspecStore, ObjectStore

import xloader
from xloader.errors import XloaderError
from xloader.testing import write_store

NUM_STORES = 60
BUDGET_NBYTES, SPARE_NBYTES = 8 << 20, 64 << 20
NUM_TIMES, NUM_CELLS, PER_CHUNK = 24, 300, 4

Encoding = dict[str, Any]

VERSION_3: dict[str, Encoding] = {
    "plain": {"compressors": []},
    **{
        f"blosc-{name}": {"compressors": [BloscCodec(cname=name)]}
        for name in ("lz4", "zstd", "blosclz", "zlib")
    },
    "zstd": {"compressors": [ZstdCodec()]},
    "gzip": {"compressors": [GzipCodec()]},
    "crc32c": {"compressors": [Crc32cCodec()]},
    "zstd-crc32c": {"compressors": [ZstdCodec(), Crc32cCodec()]},
    "by-zarr": {"compressors": [BloscCodec(), GzipCodec()]},
    "packed": {"compressors": [ZstdCodec()], "dtype": "i2", "scale_factor": 0.5, "add_offset": 1},
}
VERSION_2: dict[str, Encoding] = {
    "v2-plain": {"compressors": None},
    "v2-blosc": {"compressors": numcodecs.Blosc()},
    "v2-zstd": {"compressors": numcodecs.Zstd()},
    "v2-gzip": {"compressors": numcodecs.GZip()},
    "v2-zlib": {"compressors": numcodecs.Zlib()},
    "v2-bz2": {"compressors": numcodecs.BZ2()},
    "v2-lz4": {"compressors": numcodecs.LZ4()},
    "v2-crc32": {"filters": [numcodecs.CRC32()], "compressors": numcodecs.Zlib()},
    "v2-shuffle": {"filters": [numcodecs.Shuffle(4)], "compressors": numcodecs.LZ4()},
    "v2-delta": {"filters": [numcodecs.Delta("<f4")], "compressors": numcodecs.Zstd()},
    "v2-by-zarr": {"compressors": numcodecs.LZMA()},
}
LAYOUTS = [*VERSION_3, *(f"shards-{name}" for name in VERSION_3), *VERSION_2]
PLACES = ("folder", "folder", "folder", "zip", "obstore", "fsspec")


class Outcome(NamedTuple):
    """How a damaged store was read: in words, and the growth of memory if the system tells it."""

    words: str
    grown_nbytes: int | None


def make_dataset() -> xr.Dataset:
    values = np.arange(NUM_TIMES * NUM_CELLS, dtype="f4").reshape(NUM_TIMES, NUM_CELLS) % 1000
    cells = xr.DataArray(np.arange(NUM_CELLS) * 0.25, dims="x")
    return xr.Dataset({"t": (("time", "x"), values)}, {"x": cells})


def write(layout: str, rng: np.random.Generator, folder: Path) -> None:
    name = layout.removeprefix("shards-")
    encoding = {**VERSION_3, **VERSION_2}[name]
    if name != layout:
        index = [BytesCodec(), Crc32cCodec()] if rng.random() < 0.5 else [BytesCodec()]
        location = str(rng.choice(["start", "end"]))
        shards = {
            "shape": (2 * PER_CHUNK, NUM_CELLS),
            "index_location": location,
            "index_codecs": index,
        }
        encoding = {**encoding, "shards": shards}
    chunks = {"t": (PER_CHUNK, NUM_CELLS)}
    zarr_format = 2 if name in VERSION_2 else 3
    write_store(make_dataset(), chunks, folder, zarr_format=zarr_format, encoding={"t": encoding})


def some_number(rng: np.random.Generator, size: int) -> bytes:
    """A number of some bytes that a reader of sizes and offsets may stumble over."""
    edge = 1 << int(rng.integers(1, 8 * size))
    number = [0, edge - 1, edge, int(rng.integers(0, 4096)), -1, -edge][rng.integers(6)]
    return (number % (1 << 8 * size)).to_bytes(size, str(rng.choice(["little", "big"])))


def damage(file: Path, rng: np.random.Generator, *, is_sharded: bool) -> str:
    """Damage a stored object, and say how."""
    data = bytearray(file.read_bytes())
    kinds = ["header", "header", "bytes", "truncated", "extended", "sparse", "other", "empty"]
    kind = str(rng.choice([*kinds, *["index"] * 6 * is_sharded]))
    if kind == "header":
        size = int(rng.choice([1, 2, 4, 8]))
        at = int(rng.integers(0, 20))
        data[at : at + size] = some_number(rng, size)
    elif kind == "bytes":
        for at in rng.integers(0, len(data), rng.integers(1, 5)):
            data[at] ^= int(rng.integers(1, 256))
    elif kind == "truncated":
        del data[int(rng.integers(0, len(data))) :]
    elif kind == "extended":
        data += rng.bytes(int(rng.integers(1, 1 << int(rng.integers(1, 18)))))
    elif kind == "other":
        data = bytearray(rng.bytes(int(rng.integers(0, 1000))))
    elif kind == "empty":
        data.clear()
    elif kind == "index":
        # An index of two chunks takes 32 bytes, and four more if it has a checksum.
        size, has_sum = 32, bool(rng.random() < 0.5)
        begin = 0 if rng.random() < 0.5 else len(data) - size - 4 * has_sum
        at = begin + 8 * int(rng.integers(4))
        data[at : at + 8] = some_number(rng, 8)
        if has_sum:
            data[begin + size : begin + size + 4] = crc32c(
                bytes(data[begin : begin + size])
            ).to_bytes(4, "little")
    file.write_bytes(data)
    if kind == "sparse":
        with open(file, "r+b") as opened:
            opened.truncate(1 << int(rng.integers(16, 44)))
    return kind


def put(place: str, folder: Path) -> Any:
    """The store as a user passes it to `xloader.open`."""
    if place == "obstore":
        from obstore.store import LocalStore

        return ObjectStore(LocalStore(str(folder)), read_only=True)
    if place == "fsspec":
        return FsspecStore.from_url(f"file://{folder}", read_only=True)
    if place == "zip":
        path = folder.with_suffix(".zip")
        with zipfile.ZipFile(path, "w") as archive:
            for file in folder.rglob("*"):
                archive.write(file, file.relative_to(folder).as_posix())
        return path
    return folder


def read(store: Any, **options: Any) -> dict[int, np.ndarray]:
    """The rows of an epoch, by their ids. The labels of ``x`` are read for it."""
    samples = xloader.open(store).sel(x=slice(0.0, None)).window(time=1)
    loader = samples.loader(
        batch_size=4, output="numpy", memory=BUDGET_NBYTES, on_nan="ignore", **options
    )
    with loader:
        pairs = ((batch.ids.tolist(), np.array(batch[0])) for batch in loader)
        return {i: row for ids, rows in pairs for i, row in zip(ids, rows, strict=True)}


def peak_nbytes(*, anew: bool) -> int:
    """The most memory of this process so far, or from now on."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def read_and_compare(seed: int, folder: Path) -> Outcome:
    """Damage a store at random, and read it; fail if it ends in anything that it should not."""
    rng = np.random.default_rng(seed)
    layout, place = str(rng.choice(LAYOUTS)), str(rng.choice(PLACES))
    folder = folder / f"{seed}.zarr"
    write(layout, rng, folder)
    kept = read(folder)
    # Labels of other stores are read by xarray, whatever their size.
    own = "x" if rng.random() < 0.2 and place == "folder" else "t"
    files = sorted(f for f in (folder / own).rglob("*") if f.is_file() and f.name[-1].isdigit())
    file = files[rng.integers(len(files))]
    kind = damage(file, rng, is_sharded=own == "t" and layout.startswith("shards"))
    if layout.endswith("by-zarr") and kind == "sparse":
        # Python's gzip passes over zeros behind its data byte by byte.
        os.truncate(file, min(file.stat().st_size, 1 << 20))
    is_giant = file.stat().st_size > SPARE_NBYTES
    # A zip file holds no sparse files.
    store = put("folder" if is_giant and place == "zip" else place, folder)
    told = f"{own} in {layout}, {kind}, {file.stat().st_size} bytes, {place}"
    grown = before = None
    if os.access("/proc/self/clear_refs", os.W_OK):
        before = peak_nbytes(anew=True)
    found: dict[int, np.ndarray] | None = None
    try:
        found = read(store)
        words = "values"
    except XloaderError as error:
        words = type(error).__name__
        try:
            skipped = read(store, on_error="skip")
            assert all(np.array_equal(rows, kept[i]) for i, rows in skipped.items()), told
            words += ", skipped"
        except XloaderError:
            pass
    except BaseException as error:
        error.add_note(told)
        raise
    if before is not None:
        grown = peak_nbytes(anew=False) - before
        assert grown <= BUDGET_NBYTES + SPARE_NBYTES, f"{told}: memory grew by {grown} bytes"
    if found is not None and kind != "sparse":
        options: dict[str, Any] = {"consolidated": False, "chunks": None, "drop_variables": "x"}
        with xr.open_zarr(folder, **options) as oracle:
            kept = dict(enumerate(np.asarray(oracle["t"])[:, np.newaxis, np.newaxis]))
    if found is not None:
        assert found.keys() == kept.keys(), told
        for i, row in found.items():
            np.testing.assert_array_equal(row.ravel(), kept[i].ravel(), err_msg=told)
    return Outcome(f"{kind}: {words}", grown)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, NUM_STORES, 10))
def test_damage_ends_in_values_or_an_error(first: int, tmp_path: Path) -> None:
    outcomes = [read_and_compare(seed, tmp_path) for seed in range(first, first + 10)]
    # Not all of them end alike.
    assert len({outcome.words for outcome in outcomes}) > 2


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")


def main(num_stores: int) -> None:
    """Try many stores, and print how many ended in which way."""
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    most = num_failed = 0
    for seed in itertools.islice(itertools.count(), num_stores):
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = read_and_compare(seed, Path(folder))
            except Exception as error:
                num_failed += 1
                notes = "; ".join(getattr(error, "__notes__", ()))
                tell(f"{seed} {type(error).__name__}: {str(error)[:300]} {notes}")
                continue
        counts[outcome.words] += 1
        most = max(most, outcome.grown_nbytes or 0)
    for words, count in sorted(counts.items()):
        tell(f"{count:6} {words}")
    tell(f"{num_failed} of {num_stores} failed; memory grew by at most {most / 2**20:.1f} MiB")
    sys.exit(num_failed > 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
