"""Synthetic weather for examples: four related variables that a network can learn to forecast.

The fields are sums of moving waves. Each wave has a zonal wavenumber and a band of latitudes. The
zonal flow of the band carries it along. The flow differs between bands, so its shear pulls the
pattern apart. Against the flow the wave drifts west as a Rossby wave does: long waves stand nearly
still, and short ones move fast. Random kicks slowly replace the amplitude of each wave::

    amplitude(t + 1) = memory * exp(-i * frequency) * amplitude(t) + kick

This is not a simulation of the atmosphere: only the look, the units and the time scales are
similar.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec

EARTH_RADIUS = 6.371e6  # m
EARTH_ROTATION = 7.292e-5  # rad/s
GRAVITY = 9.81  # m/s2
STEP_SECONDS = 6 * 3600.0

_ATTRS = ("long_name", "standard_name", "units")
VARIABLE_ATTRS: Mapping[str, Mapping[str, str]] = {
    name: dict(zip(_ATTRS, values, strict=True))
    for name, *values in (
        ("z500", "geopotential height at 500 hPa", "geopotential_height", "m"),
        ("t2m", "air temperature at 2 m", "air_temperature", "K"),
        ("u10", "eastward wind at 10 m", "eastward_wind", "m s-1"),
        ("v10", "northward wind at 10 m", "northward_wind", "m s-1"),
    )
}
"""The variables of the demo's store, in order, with their CF attributes."""

# Values are rounded, as in many archives. A power of two leaves zero bits, which compress well.
_PRECISION = {"z500": 1 / 8, "t2m": 1 / 64, "u10": 1 / 64, "v10": 1 / 64}
_NOISE = {"z500": 2.0, "t2m": 0.3, "u10": 0.3, "v10": 0.3}

_WAVENUMBERS = np.arange(1, 11)
_BANDS = np.arange(-70.0, 71.0, 10.0)  # degrees north
_BAND_WIDTH = 12.0  # degrees
_MEMORY_STEPS = 80  # e-folding time of the amplitudes: 20 days

# Part of the store's name: a store with waves of another version must not be used.
_VERSION = 1


@dataclass(frozen=True)
class WaveSpec:
    """Size and seed of the synthetic weather."""

    num_steps: int = 1792
    num_lats: int = 73
    num_lons: int = 144
    chunk_steps: int = 16
    seed: int = 0

    @property
    def lats(self) -> NDArray[np.float64]:
        """Latitudes from north to south, degrees, shape (num_lats,)."""
        return np.linspace(90.0, -90.0, self.num_lats, dtype=np.float64)

    @property
    def lons(self) -> NDArray[np.float64]:
        """Longitudes from 0 eastwards, degrees, shape (num_lons,)."""
        return np.arange(self.num_lons, dtype=np.float64) * (360.0 / self.num_lons)


def make_waves(spec: WaveSpec) -> xr.Dataset:
    """The synthetic weather of a `WaveSpec`, float32 in the units of `VARIABLE_ATTRS`."""
    amplitudes, patterns, means = _amplitudes(spec), _patterns(spec), _means(spec)
    grid = (spec.num_lats, spec.num_lons)
    fields = {name: np.empty((spec.num_steps, *grid), np.float32) for name in VARIABLE_ATTRS}
    for start in range(0, spec.num_steps, spec.chunk_steps):
        # The 1 keeps the noise apart from the amplitudes, which are drawn with [seed, 0].
        rng = np.random.default_rng([spec.seed, 1, start])
        steps = slice(start, start + spec.chunk_steps)
        for name, field in fields.items():
            block = (amplitudes[steps] @ patterns[name]).reshape(-1, *grid) + means[name]
            block += _NOISE[name] * rng.standard_normal(block.shape, dtype=np.float32)
            step = np.float32(_PRECISION[name])
            field[steps] = np.rint(block / step) * step
    times = np.datetime64("2000-01-01", "ns") + np.timedelta64(6, "h") * np.arange(spec.num_steps)
    lat_attrs = {"standard_name": "latitude", "units": "degrees_north"}
    lon_attrs = {"standard_name": "longitude", "units": "degrees_east"}
    return xr.Dataset(
        {name: (("time", "lat", "lon"), fields[name], VARIABLE_ATTRS[name]) for name in fields},
        {
            "time": ("time", times, {"standard_name": "time"}),
            "lat": ("lat", spec.lats, lat_attrs),
            "lon": ("lon", spec.lons, lon_attrs),
        },
        {
            "Conventions": "CF-1.10",
            "title": "Moving waves on a sphere, made by xloader",
            "comment": "Synthetic: it has the look and the units of the atmosphere, no more.",
        },
    )


def _zonal_flow(lats: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mid-tropospheric zonal wind in m/s: a jet in each hemisphere, easterlies between them.

    Latitudes are in degrees north.
    """
    jets = 19.0 * np.exp(-(((np.abs(lats) - 45.0) / 16.0) ** 2))
    return jets - 5.0 * np.exp(-((lats / 12.0) ** 2)) + 3.0


def _modes() -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Zonal wavenumber and central latitude (degrees north) of each wave, shape (num_waves,)."""
    numbers, bands = np.meshgrid(_WAVENUMBERS, _BANDS, indexing="ij")
    return numbers.ravel(), bands.ravel()


def _frequencies() -> NDArray[np.float64]:
    """Phase that each wave gains in a time step, in radians, positive eastwards."""
    numbers, bands = _modes()
    cosine = np.cos(np.deg2rad(bands))
    beta = 2 * EARTH_ROTATION * cosine / EARTH_RADIUS
    zonal = numbers / (EARTH_RADIUS * cosine)
    meridional = np.pi / (EARTH_RADIUS * np.deg2rad(4 * _BAND_WIDTH))
    # The formula is for an infinite plane, where long waves move west fast. On Earth they nearly
    # stand still, so the drift has a limit.
    drift = np.minimum(beta / (zonal**2 + meridional**2), 12.0)
    speed = _zonal_flow(bands) - drift
    return np.asarray(zonal * speed * STEP_SECONDS)


def _amplitudes(spec: WaveSpec) -> NDArray[np.float32]:
    """Real and imaginary parts of all waves at all steps, shape (num_steps, 2 * num_waves)."""
    numbers, bands = _modes()
    spectrum = np.exp(-(((numbers - 6.0) / 2.5) ** 2)) + 0.15
    tracks = np.exp(-(((np.abs(bands) - 48.0) / 18.0) ** 2)) + 0.15
    scale = spectrum * tracks
    rng = np.random.default_rng([spec.seed, 0])
    kicks = rng.standard_normal((spec.num_steps, numbers.size, 2)) @ np.array([1.0, 1.0j])
    memory = np.exp(-1.0 / _MEMORY_STEPS)
    turn = memory * np.exp(-1j * _frequencies())
    kicks[1:] *= np.sqrt(1 - memory**2)
    waves = np.empty_like(kicks)
    waves[0] = kicks[0]
    for step in range(1, spec.num_steps):
        waves[step] = turn * waves[step - 1] + kicks[step]
    waves *= scale
    return np.concatenate([waves.real, waves.imag], axis=1).astype(np.float32)


def _patterns(spec: WaveSpec) -> dict[str, NDArray[np.float32]]:
    """Pattern of each wave of amplitude 1 in each variable, shape (2 * num_waves, lat * lon)."""
    numbers, bands = _modes()
    lats, lons = np.deg2rad(spec.lats), np.deg2rad(spec.lons)
    cosine = np.maximum(np.cos(lats), 0.02)
    width = np.deg2rad(_BAND_WIDTH)
    distance = (lats - np.deg2rad(bands)[:, None]) / width
    # At a pole all longitudes are one point, so every wave must vanish there.
    bump = 38.0 * np.exp(-0.5 * distance**2) * np.minimum(np.cos(lats) / 0.35, 1.0)
    slope = np.gradient(bump, lats, axis=1) / EARTH_RADIUS
    phase = np.exp(1j * numbers[:, None] * lons)

    height = bump[:, :, None] * phase[:, None, :]
    height_x = 1j * numbers[:, None, None] * height / (EARTH_RADIUS * cosine[:, None])
    height_y = slope[:, :, None] * phase[:, None, :]
    coriolis = 2 * EARTH_ROTATION * np.sin(lats)
    weakest = 2 * EARTH_ROTATION * np.sin(np.deg2rad(20.0))
    # g/f of the geostrophic balance, limited near the equator, where f is 0.
    balance = (GRAVITY * coriolis / (coriolis**2 + weakest**2))[:, None]
    u_free, v_free = -balance * height_y, balance * height_x
    # Friction slows the wind near the ground and turns it towards the low.
    turn = (np.deg2rad(25.0) * np.tanh(np.rad2deg(lats) / 10.0))[:, None]
    u_ground = 0.5 * (u_free * np.cos(turn) - v_free * np.sin(turn))
    v_ground = 0.5 * (u_free * np.sin(turn) + v_free * np.cos(turn))
    # The warmest air lies an eighth of a wave west of the ridge. It varies most over land.
    warm = 0.075 * height * np.exp(0.25j * np.pi) * (0.7 + 0.6 * _land(spec))
    fields = {"z500": height, "t2m": warm, "u10": u_ground, "v10": v_ground}
    return {name: _real_rows(field) for name, field in fields.items()}


def _real_rows(pattern: NDArray[np.complex128]) -> NDArray[np.float32]:
    """Real rows for the real parts of the amplitudes, then those for the imaginary parts."""
    flat = pattern.reshape(len(pattern), -1)
    return np.concatenate([flat.real, -flat.imag]).astype(np.float32)


def _land(spec: WaveSpec) -> NDArray[np.float64]:
    """Share of land, 0 to 1, as smooth continents, shape (num_lats, num_lons)."""
    lats, lons = np.deg2rad(spec.lats)[:, None], np.deg2rad(spec.lons)[None, :]
    hills = np.cos(2 * lons + 0.6) * np.cos(lats) + 0.6 * np.cos(3 * lons - 2 * lats)
    return np.asarray(1 / (1 + np.exp(-6 * (hills + 0.5 * np.sin(lats)))))


def _means(spec: WaveSpec) -> dict[str, NDArray[np.float32]]:
    """The time mean of each variable, to which the waves are added, (num_lats, num_lons)."""
    lats = spec.lats[:, None]
    sine = np.sin(np.deg2rad(lats))
    land = _land(spec)
    flow = _zonal_flow(lats)
    means = {
        "z500": 5880.0 - 780.0 * np.abs(sine) ** 2.2 - 20.0 * land,
        "t2m": 302.0 - 52.0 * sine**2 + 6.0 * (land - 0.5) * np.cos(2 * np.deg2rad(lats)),
        "u10": 0.35 * flow - 3.0,
        "v10": -2.0 * np.sin(np.deg2rad(3 * lats)) * np.exp(-((lats / 35.0) ** 2)),
    }
    shape = (spec.num_lats, spec.num_lons)
    return {name: np.broadcast_to(mean, shape).astype(np.float32) for name, mean in means.items()}


def store_path(cache: Path, spec: WaveSpec) -> Path:
    """The path of a store. Its name holds everything that determines the data."""
    size = f"{spec.num_steps}x{spec.num_lats}x{spec.num_lons}-by{spec.chunk_steps}"
    return cache / f"waves-v{_VERSION}-{size}-seed{spec.seed}.zarr"


def ensure_store(path: Path, spec: WaveSpec) -> None:
    """Make a store at a path, if there is nothing.

    The store is written to another folder and renamed when complete. So a run that is interrupted
    leaves no incomplete store at this path, and two runs at once do not disturb each other.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    chunks = (min(spec.chunk_steps, spec.num_steps), spec.num_lats, spec.num_lons)
    codec = BloscCodec(cname="zstd", clevel=3, shuffle="shuffle", typesize=4)
    encoding = {name: {"chunks": chunks, "compressors": codec} for name in VARIABLE_ATTRS}
    with tempfile.TemporaryDirectory(prefix=f"{path.stem}.partial-", dir=path.parent) as folder:
        partial = Path(folder) / path.name
        make_waves(spec).to_zarr(partial, zarr_format=3, consolidated=False, encoding=encoding)
        try:
            partial.rename(path)
        except OSError:
            # Another run finished first: a folder that is not empty cannot be replaced.
            if not path.is_dir():
                raise


def tutorial_store(path: str | os.PathLike[str] = "weather.zarr") -> str:
    """Make the Zarr store of the examples, if it is not there yet.

    It holds a year of synthetic weather every six hours, of moving waves on a sphere: ``z500``,
    ``t2m``, ``u10`` and ``v10``, float32 of shape (time: 1464, lat: 37, lon: 72), each in 92 chunks
    of 16 whole maps, 62 MB before compression.

    Parameters
    ----------
    path : path-like
        Where it should lie. A folder that is there already is taken as it is.

    Returns
    -------
    str
        The path, to open.

    Examples
    --------
    >>> import tempfile, xloader
    >>> from xloader.testing import tutorial_store
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     weather = xloader.open(tutorial_store(f"{folder}/weather.zarr"))
    >>> weather.sizes
    {'time': 1464, 'lat': 37, 'lon': 72}
    """
    ensure_store(Path(path), WaveSpec(num_steps=1464, num_lats=37, num_lons=72))
    return os.fspath(path)
