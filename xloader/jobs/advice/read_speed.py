"""How long an epoch takes: a simple sum of the work, with assumed or measured figures."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numcodecs.zstd import Zstd
from numpy.typing import NDArray

from xloader.core.options import LoaderOptions
from xloader.jobs.advice.target_recipe import stored_variables
from xloader.planning.explain import Explanation
from xloader.recipe.recipe import Recipe
from xloader.sources.base import Read, Variable

_MOST_REQUESTS: Final = 64
"""Requests under way at a time, to a store whose reads mostly wait."""


@dataclass(frozen=True)
class ReadSpeed:
    """The seconds that parts of an epoch's work take, on one thread.

    The figures that are assumed are those of the project's benchmarks, on a core of an AMD EPYC:
    floats that compress as weather data do, with zstd, from files in the page cache.

    Parameters
    ----------
    decode_ns : float
        Nanoseconds to decode each byte.
    fetch_ns : float
        Nanoseconds for each decoded byte until it is fetched and lies in place.
    today_ns : float or None
        Both together, of today's chunks; None if it was not measured.
    through_xarray_ns : float
        What is assumed in its place where xarray reads.
    chunk_us : float
        Microseconds for each chunk, beside decoding it.
    gather_ns : float
        Nanoseconds for each byte that is copied into a batch.
    row_ns : float
        Nanoseconds for each row of neighbouring elements, beside its bytes.
    request_ms : float
        Milliseconds of one request, to a store whose reads mostly wait.
    stored_share : float or None
        Stored bytes of each decoded one in the target's codec; None if that was not measured.
    num_reads : int
        Chunks that were read to measure this; 0 if all of it is assumed.
    """

    decode_ns: float = 1.0
    fetch_ns: float = 1.0
    today_ns: float | None = None
    through_xarray_ns: float = 4.0
    chunk_us: float = 110.0
    gather_ns: float = 0.1
    row_ns: float = 200.0
    request_ms: float = 50.0
    stored_share: float | None = None
    num_reads: int = 0

    @property
    def is_measured(self) -> bool:
        """Whether the time for decoding was measured. The other figures are always assumed."""
        return self.num_reads > 0

    def gb_per_s(
        self,
        expected: Explanation,
        options: LoaderOptions,
        sample_nbytes: int,
        sample_rows: int,
        max_chunk_nbytes: int,
        *,
        is_waiting: bool = False,
        is_today: bool = False,
        is_through_xarray: bool = False,
    ) -> float:
        """Bytes of batches delivered in a second, in 10^9, if nothing else takes time.

        Parameters
        ----------
        expected : Explanation
            The cost of the epoch.
        options : LoaderOptions
            The options, for the number of threads and the memory.
        sample_nbytes : int
            Bytes of a sample in a batch.
        sample_rows : int
            Rows of neighbouring elements that a sample is copied in.
        max_chunk_nbytes : int
            Decoded bytes of the largest chunk.
        is_waiting : bool
            Whether reading the store mostly waits.
        is_today : bool
            Whether these are the chunks of today.
        is_through_xarray : bool
            Whether xarray reads today's chunks.
        """
        delivered = expected.num_samples * sample_nbytes
        read_ns = self.through_xarray_ns if is_today and is_through_xarray else self.read_ns
        if is_today and self.today_ns is not None:
            read_ns = self.today_ns
        decoding = 1e-9 * read_ns * expected.read_nbytes
        decoding += 1e-6 * self.chunk_us * expected.num_reads
        gathering = 1e-9 * self.gather_ns * delivered
        gathering += 1e-9 * self.row_ns * sample_rows * expected.num_samples
        num_threads = options.num_threads
        # The memory for reads in flight limits the threads that decode at a time.
        fitting = max(options.memory_nbytes // 16 // max(max_chunk_nbytes, 1), 2)
        seconds = decoding / min(num_threads, fitting) + gathering / num_threads
        if is_waiting:
            seconds = max(seconds, 1e-3 * self.request_ms * expected.num_reads / _MOST_REQUESTS)
        return 1e-9 * delivered / max(seconds, 1e-9)

    @property
    def read_ns(self) -> float:
        """Nanoseconds to fetch and decode each byte of new chunks."""
        return self.decode_ns + self.fetch_ns


def show_gb_per_s(speed: float) -> str:
    """A speed as text."""
    digits = 2 if speed >= 0.1 else 2 - math.floor(math.log10(max(speed, 1e-6))) - 1
    return f"{speed:.{min(digits, 6)}f} GB/s"


_NUM_READS: Final = 4
_MOST_NBYTES: Final = 1 << 26
"""Decoded bytes that are read at most, beside the first chunk."""

_NUM_TURNS: Final = 3
_BLOCK_NBYTES: Final = 1 << 22
_LEVEL: Final = 0
"""Level of zstd that zarr uses by default."""


def measure_speed(recipe: Recipe) -> ReadSpeed:
    """Read up to four chunks of the variable with most bytes, and encode their values anew."""
    largest = max(
        stored_variables(recipe), key=lambda v: math.prod(v.shape) * v.stored_dtype.itemsize
    )
    values, seconds = _read_some(recipe, largest)
    nbytes = sum(array.nbytes for array in values)
    plain = np.concatenate([array.ravel() for array in values])
    codec = Zstd(level=_LEVEL)
    step = max(_BLOCK_NBYTES // plain.itemsize, 1)
    blocks = [codec.encode(plain[begin : begin + step]) for begin in range(0, plain.size, step)]
    out = np.empty(step, plain.dtype)
    decoding = []
    for _ in range(_NUM_TURNS):
        begun = time.perf_counter()
        for number, block in enumerate(blocks):
            codec.decode(block, out[: min(step, plain.size - number * step)])
        decoding.append(time.perf_counter() - begun)
    return ReadSpeed(
        # Other programs may take the core in some of the turns.
        decode_ns=1e9 * min(decoding) / nbytes,
        today_ns=1e9 * seconds / nbytes,
        stored_share=sum(map(len, blocks)) / nbytes,
        num_reads=len(values),
    )


def _read_some(recipe: Recipe, variable: Variable) -> tuple[list[NDArray[Any]], float]:
    """The selected values of a few chunks from all over a variable, and the seconds for them."""
    axes = recipe.axes_of(variable.name)
    values: list[NDArray[Any]] = []
    seconds = 0.0
    seen: set[tuple[int, ...]] = set()
    for place in range(_NUM_READS):
        blocks = [place * (axis.num_blocks - 1) // (_NUM_READS - 1) for axis in axes]
        parts = [axis.stored_part(block) for axis, block in zip(axes, blocks, strict=True)]
        chunk = tuple(part[0] for part in parts)
        if chunk in seen or sum(array.nbytes for array in values) > _MOST_NBYTES:
            continue
        seen.add(chunk)
        out = np.empty([part[2] for part in parts], variable.stored_dtype)
        begun = time.perf_counter()
        read = Read(variable.name, chunk, tuple(part[1] for part in parts))
        recipe.source.fetch([read]).decode([out])
        seconds += time.perf_counter() - begun
        values.append(out)
    return values, seconds
