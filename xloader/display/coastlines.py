"""Coastlines for maps, where cartopy and its data are installed. Nothing is downloaded."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_SCALE = "110m"


@lru_cache(maxsize=1)
def find_coastlines() -> tuple[NDArray[np.float64], ...]:
    """Coastlines of Natural Earth, as cartopy keeps them on this machine.

    The result has shape (n, 2).
    """
    if find_spec("cartopy") is None:
        return ()
    # Maps without coasts are better than no maps, whatever an old or broken cartopy raises.
    try:
        path = _stored_path()
        return () if path is None else _read_lines(path)
    except Exception:
        return ()


def _stored_path() -> Path | None:
    import cartopy
    from cartopy.io import Downloader

    names = {"resolution": _SCALE, "category": "physical", "name": "coastline"}
    found = Downloader.from_config(("shapefiles", "natural_earth", *names.values()))
    fields = {"config": cartopy.config, **names}
    places = [found.pre_downloaded_path(fields), found.target_path(fields)]
    return next((Path(place) for place in places if place and Path(place).exists()), None)


def _read_lines(path: Path) -> tuple[NDArray[np.float64], ...]:
    from cartopy.io import shapereader

    lines = []
    for geometry in shapereader.Reader(str(path)).geometries():
        for part in getattr(geometry, "geoms", [geometry]):
            lines.append(np.asarray(part.coords, np.float64)[:, :2])
    return tuple(lines)
