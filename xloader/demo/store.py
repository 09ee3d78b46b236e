"""The synthetic weather of `xloader.demo.waves` as a Zarr v3 store in the user's cache folder.

The demo makes the store once, and finds it there afterwards.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zarr
from zarr.codecs import BloscCodec

from xloader.demo.waves import VARIABLE_ATTRS, Waves, WaveSpec

# Part of the store's name: a store with waves of another version must not be used.
_VERSION = 1
_STALE_SECONDS = 3600.0


def store_path(cache: Path, spec: WaveSpec) -> Path:
    """The path of a store. Its name holds everything that determines the data."""
    size = f"{spec.num_steps}x{spec.num_lats}x{spec.num_lons}-by{spec.chunk_steps}"
    return cache / f"waves-v{_VERSION}-{size}-seed{spec.seed}.zarr"


def ensure_store(
    cache: Path, spec: WaveSpec, *, on_progress: Callable[[int, int], None] | None = None
) -> Path:
    """The path of a store in the cache, which is made first if it is absent.

    The store is written to another folder and renamed when complete. So a run that is killed
    leaves no incomplete store at this path, and two runs at once do not disturb each other.
    """
    path = store_path(cache, spec)
    if path.is_dir():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    _remove_stale(cache)
    partial = Path(tempfile.mkdtemp(prefix=f"{path.stem}.partial-", dir=cache))
    try:
        write_waves(partial, spec, on_progress=on_progress)
        # mkdtemp makes a folder that only this user may read, but a cache may be shared.
        partial.chmod(0o755)
        partial.rename(path)
    except OSError:
        # Another run finished first: a folder that is not empty cannot be replaced.
        if not path.is_dir():
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return path


def write_waves(
    path: Path, spec: WaveSpec, *, on_progress: Callable[[int, int], None] | None = None
) -> None:
    """Write waves as a Zarr v3 store, one chunk of time after another.

    Memory holds one chunk of each variable and the few MB of a `Waves` object.
    """
    waves = Waves(spec)
    group = zarr.create_group(
        path,
        zarr_format=3,
        overwrite=True,
        attributes={
            "Conventions": "CF-1.10",
            "title": "Moving waves on a sphere, made by `xloader demo`",
            "comment": "Synthetic: it has the look and the units of the atmosphere, no more.",
        },
    )
    _write_coordinates(group, spec)
    arrays = {
        name: group.create_array(
            name,
            shape=(spec.num_steps, spec.num_lats, spec.num_lons),
            chunks=(min(spec.chunk_steps, spec.num_steps), spec.num_lats, spec.num_lons),
            dtype="float32",
            fill_value=float("nan"),
            compressors=BloscCodec(cname="zstd", clevel=3, shuffle="shuffle", typesize=4),
            dimension_names=("time", "lat", "lon"),
            attributes=dict(attrs),
        )
        for name, attrs in VARIABLE_ATTRS.items()
    }
    for start in range(0, spec.num_steps, spec.chunk_steps):
        stop = min(start + spec.chunk_steps, spec.num_steps)
        for name, block in waves.block(start, stop).items():
            arrays[name][start:stop] = block
        if on_progress is not None:
            on_progress(stop, spec.num_steps)


def _write_coordinates(group: zarr.Group, spec: WaveSpec) -> None:
    """Write time, lat and lon, each in one chunk."""
    hours = 6 * np.arange(spec.num_steps, dtype=np.int64)
    for name, values, standard_name, units in (
        ("time", hours, "time", "hours since 2000-01-01 00:00:00"),
        ("lat", spec.lats, "latitude", "degrees_north"),
        ("lon", spec.lons, "longitude", "degrees_east"),
    ):
        group.create_array(
            name,
            data=values,
            chunks=values.shape,
            dimension_names=(name,),
            attributes={"standard_name": standard_name, "units": units},
        )


def _remove_stale(cache: Path) -> None:
    """Remove incomplete stores of killed runs.

    Those younger than an hour stay, since a run may still be writing them.
    """
    for leftover in cache.glob("waves-v*.partial-*"):
        try:
            is_stale = time.time() - leftover.stat().st_mtime > _STALE_SECONDS
        except FileNotFoundError:
            continue
        if is_stale:
            shutil.rmtree(leftover, ignore_errors=True)
