"""The synthetic weather of `xloader.demo.waves` as a Zarr store in the user's cache folder.

The demo makes the store once, and finds it there afterwards.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from zarr.codecs import BloscCodec

from xloader.demo.waves import VARIABLE_ATTRS, WaveSpec, make_waves

# Part of the store's name: a store with waves of another version must not be used.
_VERSION = 1
_STALE_SECONDS = 3600


def store_path(cache: Path, spec: WaveSpec) -> Path:
    """The path of a store. Its name holds everything that determines the data."""
    size = f"{spec.num_steps}x{spec.num_lats}x{spec.num_lons}-by{spec.chunk_steps}"
    return cache / f"waves-v{_VERSION}-{size}-seed{spec.seed}.zarr"


def ensure_store(cache: Path, spec: WaveSpec) -> Path:
    """The path of a store in the cache, which is made first if it is absent.

    The store is written to another folder and renamed when complete. So a run that is interrupted
    leaves no incomplete store at this path, and two runs at once do not disturb each other.
    """
    path = store_path(cache, spec)
    if path.is_dir():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    chunks = (min(spec.chunk_steps, spec.num_steps), spec.num_lats, spec.num_lons)
    codec = BloscCodec(cname="zstd", clevel=3, shuffle="shuffle", typesize=4)
    encoding = {name: {"chunks": chunks, "compressors": codec} for name in VARIABLE_ATTRS}
    _remove_stale(cache)
    with tempfile.TemporaryDirectory(prefix=f"{path.stem}.partial-", dir=cache) as folder:
        partial = Path(folder) / path.name
        make_waves(spec).to_zarr(partial, zarr_format=3, consolidated=False, encoding=encoding)
        try:
            partial.rename(path)
        except OSError:
            # Another run finished first: a folder that is not empty cannot be replaced.
            if not path.is_dir():
                raise
    return path


def _remove_stale(cache: Path) -> None:
    """Remove what killed runs left. Younger folders stay, since a run may be writing them."""
    for leftover in cache.glob("waves-v*.partial-*"):
        with suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)
