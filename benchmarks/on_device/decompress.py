"""Chunks decompressed on the device by nvCOMP, against this computer's cores and the ring.

nvCOMP decodes many chunks at a time, and needs the compressed bytes on the device. kvikio reads
files into memory of the device, past the page cache where the system allows it (GPUDirect Storage).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import zarr

from benchmarks.layouts import VARIABLES
from benchmarks.on_device.clock import NOT_MEASURED, DeviceClock
from benchmarks.on_device.feeds import open_samples
from benchmarks.on_device.scale import STEPS_PER_CHUNK, Scale
from benchmarks.table import make_table

CHUNKS_AT_A_TIME: Final = 32
OURS: Final = "the loader's threads, then the ring"
NVCOMP: Final = "nvCOMP, chunks read into ordinary memory"
KVIKIO: Final = "zarr.config.enable_gpu() and kvikio.zarr.GDSStore"
NEEDED: Final = {NVCOMP: ("nvidia.nvcomp",), KVIKIO: ("kvikio.zarr", "cupy")}


def show_decompression(clock: DeviceClock, scale: Scale, path: Path) -> str:
    """Return a table of decoded GB/s on the device, one row for each way."""
    works: dict[str, Callable[[], object]] = {OURS: lambda: _decode_ours(clock, scale, path)}
    makers = {NVCOMP: _with_nvcomp, KVIKIO: _with_kvikio}
    reasons = {name: reason_against(name, is_cuda=clock.is_cuda) for name in makers}
    for name, make in makers.items():
        if reasons[name] is None:
            works[name] = make(clock, path)
    seconds = clock.medians(works, scale.num_turns)
    rows = []
    for name in (OURS, *makers):
        reason = reasons.get(name)
        if reason is not None:
            rows.append([name, f"{NOT_MEASURED}: {reason}", NOT_MEASURED])
            continue
        speed = scale.store.nbytes / seconds[name] / 1e9
        rows.append([name, f"{speed:.2f}", f"{seconds[OURS] / seconds[name]:.2f}"])
    return make_table(["decoded by", "GB/s", "of the first"], rows)


def reason_against(way: str, *, is_cuda: bool) -> str | None:
    """Return why a way cannot be measured here, or None."""
    missing = [name for name in NEEDED[way] if not _is_there(name)]
    if missing:
        return f"{' and '.join(missing)} not installed"
    return None if is_cuda else "no GPU"


def _is_there(name: str) -> bool:
    # A parent that is missing is an error, and not an answer.
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _decode_ours(clock: DeviceClock, scale: Scale, path: Path) -> None:
    """Read and decode every chunk once, with memory for a part of them."""
    memory = max(scale.store.nbytes // 4, 16 * scale.batch_nbytes)
    loader = open_samples(path).loader(
        batch_size=scale.batch_size, memory=memory, device=clock.device, on_nan="ignore"
    )
    with loader:
        for _ in loader:
            pass


def _with_nvcomp(clock: DeviceClock, path: Path) -> Callable[[], object]:
    nvcomp = importlib.import_module("nvidia.nvcomp")
    kind = nvcomp.BitstreamKind.RAW
    codec = nvcomp.Codec(algorithm="Zstd", bitstream_kind=kind, device_id=clock.device.index or 0)
    files = [file for name in VARIABLES for file in _chunk_files(path / name)]

    def decode(some: list[Path]) -> list[torch.Tensor]:
        packed = [torch.from_numpy(np.fromfile(file, np.uint8)).to(clock.device) for file in some]
        found = codec.decode(nvcomp.as_arrays(packed))
        return [torch.as_tensor(own, device=clock.device).view(torch.uint8) for own in found]

    first = zarr.open_array(path / VARIABLES[0], mode="r")[:STEPS_PER_CHUNK]
    own = decode(files[:1])[0].cpu().numpy().view(np.float32)
    np.testing.assert_array_equal(own, np.asarray(first).ravel())

    def decode_all() -> None:
        for begin in range(0, len(files), CHUNKS_AT_A_TIME):
            decode(files[begin : begin + CHUNKS_AT_A_TIME])

    return decode_all


def _chunk_files(folder: Path) -> list[Path]:
    # Chunks are cut along time alone.
    return sorted((folder / "c").glob("*/0/0"), key=lambda file: int(file.parts[-3]))


def _with_kvikio(_: DeviceClock, path: Path) -> Callable[[], object]:
    stores: Any = importlib.import_module("kvikio.zarr")

    def decode_all() -> None:
        with zarr.config.enable_gpu():
            group = zarr.open_group(stores.GDSStore(root=str(path)), mode="r")
            for name in VARIABLES:
                group[name][:]  # type: ignore[index]

    return decode_all
