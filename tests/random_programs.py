"""Random stores and samples, whose batches are compared with plain NumPy: python -m
tests.random_programs --num 6000
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr.codecs
from zarr.storage import LocalStore

import xloader
from xloader.errors import MemoryBudgetError
from xloader.testing import LatencyStore

CODECS = (
    None,
    zarr.codecs.ZstdCodec(level=1),
    zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle"),
    zarr.codecs.GzipCodec(level=1),
)
"""Gzip is left to Python."""


def _store(rng: np.random.Generator, path: Path) -> tuple[xr.Dataset, dict[str, tuple[int, ...]]]:
    """Write a store of a few variables over two or three dimensions."""
    dims = ("time", "lat", "lon")[: int(rng.integers(1, 4))]
    sizes = {dim: int(rng.integers(3, 24)) for dim in dims}
    sizes["level"] = int(rng.integers(1, 4))
    variables: dict[str, Any] = {}
    encoding: dict[str, dict[str, Any]] = {}
    chunks: dict[str, tuple[int, ...]] = {}
    for number in range(int(rng.integers(1, 4))):
        own = tuple(dim for dim in dims if rng.random() < 0.85) or dims[:1]
        if rng.random() < 0.3:
            own = (*own[:1], "level", *own[1:])
        shape = [sizes[dim] for dim in own]
        dtype = rng.choice(["f4", "f8", "i2", "u1"])
        values = rng.integers(0, 200, shape).astype(dtype)
        name = f"v{number}"
        variables[name] = (own, values)
        chunk = tuple(int(rng.integers(1, size + 2)) for size in shape)
        chunk = tuple(min(c, s) for c, s in zip(chunk, shape, strict=True))
        encoding[name] = {"chunks": chunk, "compressors": CODECS[int(rng.integers(len(CODECS)))]}
        if rng.random() < 0.3:
            encoding[name]["shards"] = tuple(c * int(rng.integers(1, 4)) for c in chunk)
        chunks[name] = chunk
    dataset = xr.Dataset(variables)
    dataset.to_zarr(path, encoding=encoding, zarr_format=3, consolidated=False)
    return dataset, chunks


def check(seed: int, folder: Path) -> int:
    """Compare the batches of one configuration, over two epochs. Return the number of samples."""
    rng = np.random.default_rng(seed)
    dataset, _ = _store(rng, folder / f"{seed}.zarr")
    dims = [dim for dim in ("time", "lat", "lon") if dim in dataset.dims]
    windowed = [dim for dim in dims if rng.random() < 0.7] or dims[:1]
    sizes = {dim: dataset.sizes[dim] for dim in windowed}
    window = {dim: int(rng.integers(1, size + 1)) for dim, size in sizes.items()}
    stride = {dim: int(rng.integers(1, 5)) for dim in windowed}
    wrap = [dim for dim in windowed if rng.random() < 0.2]
    # Variables without a windowed dimension belong to every sample.
    place: Any = folder / f"{seed}.zarr"
    if seed % 3 == 2:
        # As if it had to be waited for.
        place = LatencyStore(LocalStore(place, read_only=True), 0.0)
    samples = xloader.open(place).window(window, stride=stride, wrap=wrap)
    options: dict[str, Any] = {
        "batch_size": int(rng.integers(1, 9)),
        "shuffle": bool(rng.random() < 0.8),
        "seed": seed,
        "threads": int(rng.integers(1, 5)),
        "prefetch": int(rng.integers(0, 4)),
        "drop_last": bool(rng.random() < 0.2),
        "output": "numpy",
        "on_nan": rng.choice(["ignore", "warn"]),
    }
    try:
        samples.loader(**options, memory=1)
    except MemoryBudgetError as error:
        memory = int((error.minimum_nbytes or 1) * rng.choice([1, 1, 1.5, 3, 1000]))
    counts = [
        -(-size // stride[dim]) if dim in wrap else (size - window[dim]) // stride[dim] + 1
        for dim, size in sizes.items()
    ]
    num = 0
    with samples.loader(**options, memory=memory) as loader:
        for _ in range(2):
            expected = loader.explain()
            seen: list[int] = []
            for batch in loader:
                for row, index in enumerate(np.asarray(batch.ids).tolist()):
                    firsts = np.unravel_index(index, counts)
                    indexers = {
                        dim: (int(at) * stride[dim] + np.arange(window[dim])) % sizes[dim]
                        for dim, at in zip(windowed, firsts, strict=True)
                    }
                    part = dataset.isel(indexers, missing_dims="ignore")
                    for name, array in zip(batch.names, batch, strict=True):
                        wanted = part[name].to_numpy()
                        got = np.asarray(array[row]).reshape(wanted.shape)
                        assert np.array_equal(got, wanted), (seed, index, name)
                seen += np.asarray(batch.ids)[~np.asarray(batch.is_padding)].tolist()
            report = loader.report()
            assert len(seen) == len(set(seen)), seed
            if not options["drop_last"]:
                assert sorted(seen) == list(range(int(np.prod(counts)))), seed
            assert report.num_reads == expected.num_reads, seed
            assert report.peak_nbytes <= expected.peak_nbytes <= memory, seed
            num += len(seen)
    return num


def main() -> None:
    """Check many configurations, and tell how many there were."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_programs")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--num", type=int, default=6000)
    options = parser.parse_args()
    num = 0
    for seed in range(options.first, options.first + options.num):
        with tempfile.TemporaryDirectory() as name:
            num += check(seed, Path(name))
    sys.stdout.write(f"{options.num} configurations, {num} samples: all as NumPy has them\n")


if __name__ == "__main__":
    main()
