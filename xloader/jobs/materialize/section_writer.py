"""Writes the sections of arrays: chunks are read into memory, then encoded shard by shard.

zarr encodes each chunk by way of an event loop, which takes as long as the compression itself. So
shards with the usual codecs are put together here, as the Zarr specification defines them::

    chunk 0 | chunk 1 | ... | index: offset and size of each chunk | checksum of the index

Where a dask cluster writes, each task gets some neighbouring sections. It reads their source
chunks, writes their shards into the target, and adds a record of them. Its result is small: sizes
and digests of shards, and figures::

    client    unit: sections 0-2, flags of their shards                 sizes, digests, num_reads
    worker    source chunks -> section in memory -> shards -> record --^
"""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import zarr
from numcodecs.blosc import Blosc
from numcodecs.zstd import Zstd
from numpy.typing import NDArray
from zarr.storage import MemoryStore

from xloader.cluster.cluster_tasks import MOST_UNITS, ClusterTasks
from xloader.engine.threads import ThreadTask
from xloader.jobs.chunk_sweep import NUM_BLOCKS, ChunkSweep, ChunkValues, one_sample
from xloader.jobs.covered_elements import CoveredElements
from xloader.jobs.materialize.rechunking import Box, Rechunking, SectionPlan
from xloader.jobs.materialize.target_arrays import TargetArray
from xloader.jobs.materialize.target_records import ShardRecord, TargetRecords, writing
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe
from xloader.sources import zarr_adapter
from xloader.sources.chunk_sizes import boxes_of
from xloader.sources.retries import Attempts
from xloader.sources.zarr.codec_chain import checksum

Index = tuple[int, ...]
"""Index of a shard, or of a source chunk, along each dimension."""

_Codec = Callable[[Any], Any]

_ABSENT: Final = np.iinfo(np.uint64).max
"""Offset and size in the index of a chunk that lies beyond the end of the array."""

_lock = threading.Lock()

_SHUFFLES: Final = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}


class ShardEncoder:
    """Encodes the shards of an array. Many threads may use it."""

    def __init__(self, array: TargetArray, metadata: bytes) -> None:
        buffer = zarr_adapter.default_buffer_prototype().buffer
        self._held: dict[str, Any] = {"zarr.json": buffer.from_bytes(metadata)}
        # A shard of fill values is written too: an absent one would count as missing.
        # The settings of zarr are those of the process, in which other tasks may set them too.
        with _lock, zarr.config.set({"array.write_empty_chunks": True}):
            self._array = zarr.open_array(MemoryStore(self._held), mode="r+")
        self._objects, self._shape, self._chunks = array.objects, array.shape, array.chunks
        self._is_sharded = array.shards is not None
        self._codecs = _codecs_of(json.loads(metadata)) if array.dims else None
        self._dtype = self._array.dtype.newbyteorder("<")
        self._fill = np.asarray(self._array.metadata.fill_value, self._dtype)

    def encode(self, shard: Index, values: NDArray[Any]) -> bytes:
        """The stored bytes of a shard, given its elements that lie inside the array."""
        if self._codecs is not None:
            return self._shard_of(values) if self._is_sharded else self._chunk_of(values)
        parts = zip(shard, self._objects, self._shape, strict=True)
        place = tuple(slice(n * size, min((n + 1) * size, end)) for n, size, end in parts)
        self._array[place or ...] = values
        return bytes(self._held.pop(self._array.metadata.encode_chunk_key(shard)).to_bytes())

    def _chunk_of(self, values: NDArray[Any]) -> bytes:
        """The stored bytes of a chunk, whose elements beyond the array are fill values."""
        if values.shape != self._chunks:
            whole = np.full(self._chunks, self._fill, self._dtype)
            whole[tuple(map(slice, values.shape))] = values
            values = whole
        encoded: Any = np.ascontiguousarray(values, self._dtype)
        for codec in self._codecs or ():
            encoded = codec(encoded)
        return bytes(encoded) if isinstance(encoded, bytes) else np.asarray(encoded).tobytes()

    def _shard_of(self, values: NDArray[Any]) -> bytes:
        """The stored bytes of a shard."""
        pairs = zip(self._objects, self._chunks, strict=True)
        grid = tuple(size // chunk for size, chunk in pairs)
        index = np.full((*grid, 2), _ABSENT, "<u8")
        parts: list[bytes] = []
        offset = 0
        for place in itertools.product(*map(range, grid)):
            cells = zip(place, self._chunks, strict=True)
            chunk = values[tuple(slice(n * size, (n + 1) * size) for n, size in cells)]
            if chunk.size:
                parts.append(self._chunk_of(chunk))
                index[place] = offset, len(parts[-1])
                offset += len(parts[-1])
        parts.append(_with_crc32c(index.tobytes()))
        return b"".join(parts)


def _codecs_of(metadata: Mapping[str, Any]) -> list[_Codec] | None:
    """The codecs of chunks, as functions; None if zarr must encode them."""
    codecs: Sequence[Mapping[str, Any]] = metadata["codecs"]
    if codecs[0]["name"] == "sharding_indexed":
        codecs = codecs[0]["configuration"]["codecs"]
    endian = codecs[0].get("configuration", {}).get("endian", "little")
    if codecs[0]["name"] != "bytes" or endian != "little":
        return None
    functions = [_codec_of(codec["name"], codec.get("configuration", {})) for codec in codecs[1:]]
    known = [codec for codec in functions if codec is not None]
    return known if len(known) == len(functions) else None


def _codec_of(name: str, options: Mapping[str, Any]) -> _Codec | None:
    if name == "zstd":
        zstd: _Codec = Zstd(options["level"], options.get("checksum", False)).encode
        return zstd
    if name == "blosc" and options["shuffle"] in _SHUFFLES:
        shuffle = _SHUFFLES[options["shuffle"]]
        numbers = (options["clevel"], shuffle, options.get("blocksize", 0))
        blosc: _Codec = Blosc(options["cname"], *numbers).encode
        return blosc
    return _with_crc32c if name == "crc32c" else None


def _with_crc32c(data: Any) -> bytes:
    body = data if isinstance(data, bytes) else np.asarray(data).tobytes()
    return body + checksum("crc32c", np.frombuffer(body, np.uint8)).to_bytes(4, "little")


Flags = NDArray[np.bool_]
Section = tuple[Box, Flags]
"""The shards that a section spans, and which of them are wanted."""

Unit = tuple[int, Sequence[Section]]
"""Some neighbouring sections of an array, which one task writes, and the number of its writer."""

SectionResult = tuple[dict[str, ShardRecord], int, float]
"""The shards that a task has written, the number of its reads, and the largest error."""

OnSection = Callable[[int], None]
"""Called with the number of shards when those of a section are written."""


@dataclass(eq=False)
class SectionWriter:
    """Writes the shards of one array that are wanted."""

    recipe: Recipe
    array: TargetArray
    metadata: bytes
    plan: SectionPlan
    records: TargetRecords
    wanted: Flags
    num_reads: int = 0
    num_written: int = 0
    written_nbytes: int = 0
    max_error: float = 0.0

    def apart(self) -> SectionWriter:
        """A writer of the same array that wants and has written nothing, with own records."""
        nothing = np.zeros_like(self.wanted, shape=0)
        return SectionWriter(
            self.recipe, self.array, self.metadata, self.plan, self.records.apart(), nothing
        )

    def sections(self) -> Iterator[Section]:
        """The sections in which shards are wanted, in order."""
        for box in boxes_of(self.array.rechunking().grid, self.plan.steps):
            flags = self.wanted[tuple(slice(*part) for part in box)]
            if flags.any():
                yield box, flags

    @property
    def expected_reads(self) -> int:
        """Number of source chunks to read, each as often as it is read."""
        if self.wanted.all():
            return self.plan.num_reads
        job = self.array.rechunking()
        return sum(len(_blocks_of(job, section)) for section in self.sections())

    def write(self, sections: Iterable[Section], on_section: OnSection) -> None:
        """Write some sections."""
        job = self.array.rechunking()
        encoder = ShardEncoder(self.array, self.metadata)
        whole, footprint = one_sample(self.recipe, self.array.name)
        group = footprint.groups[0]
        room = max(self.plan.read_room, job.max_chunk_nbytes)
        with ChunkSweep(whole, footprint, room, self.plan.num_threads) as sweep:
            for section in sections:
                # Without dimensions, the one block of the sample's window is read.
                blocks = _blocks_of(job, section) if self.array.dims else [(0,)]
                values = _SectionValues(self.array, job.elements_of(section[0]))
                for begin in range(0, len(blocks), NUM_BLOCKS):
                    some = blocks[begin : begin + NUM_BLOCKS]
                    sweep.do(sweep.read(group, some, values.place))
                made: dict[str, ShardRecord] = {}
                tasks = [
                    ThreadTask((), partial(self._write, encoder, values, shard, made))
                    for shard in _shards_of(section)
                ]
                with writing(self.records.store, self.records.marks):
                    sweep.do(tasks, self.plan.num_threads)
                    self.records.add(made)
                # Its memory is free before that of the next section is taken.
                del values, tasks
                self.count(made, sweep.num_reads - self.num_reads, self.max_error)
                on_section(len(made))

    def count(self, made: Mapping[str, ShardRecord], num_reads: int, max_error: float) -> None:
        """Add what was written and read to the figures."""
        self.num_written += len(made)
        self.written_nbytes += sum(record.nbytes for record in made.values())
        self.num_reads += num_reads
        self.max_error = max(self.max_error, max_error)

    def _write(
        self,
        encoder: ShardEncoder,
        values: _SectionValues,
        shard: Index,
        made: dict[str, ShardRecord],
        _: Attempts,
    ) -> None:
        numbers, error = self.array.convert(values.of_shard(shard))
        data = encoder.encode(shard, numbers)
        key = self.array.key_of(shard)
        self.records.store.put(self.records.prefix + key, data)
        with _lock:
            made[key] = ShardRecord.of(data)
            self.max_error = max(self.max_error, error)


class _SectionValues:
    """The values of a section in memory; `box` is that of its elements."""

    def __init__(self, array: TargetArray, box: Box) -> None:
        self.array, self.box = array, box
        self.values = np.empty([end - begin for begin, end in box], array.source_dtype)

    def place(self, chunk: ChunkValues) -> None:
        """Copy the part of a chunk that lies in the section."""
        kept = self.array.kept
        shape = [chunk.values.shape[number] for number in kept]
        to, of = [], []
        for number, size, (begin, end) in zip(kept, shape, self.box, strict=True):
            first = chunk.begins[number]
            low, high = max(first, begin), min(first + size, end)
            to.append(slice(low - begin, high - begin))
            of.append(slice(low - first, high - first))
        self.values[tuple(to)] = chunk.values.reshape(shape)[tuple(of)]

    def of_shard(self, shard: Index) -> NDArray[Any]:
        """The values of a shard."""
        places = zip(shard, self.array.objects, self.box, strict=True)
        place: list[Any] = [
            slice(n * size - begin, min((n + 1) * size, end) - begin)
            for n, size, (begin, end) in places
        ]
        # With the ellipsis, a variable without dimensions stays an array.
        return np.asarray(self.values[(*place, ...)])


def write_sections(
    tasks: ClusterTasks | None, writers: Sequence[SectionWriter], on_section: OnSection
) -> None:
    """Write all shards that some writers want, on a cluster or in this process.

    The figures that tasks have found are added up in the writers.
    """
    left = [writer for writer in writers if writer.wanted.any()]
    if tasks is None or not left:
        for writer in left:
            writer.write(writer.sections(), on_section)
        return
    shared = tuple(writer.apart() for writer in left)
    for unit, result in tasks.run("writing a store", _write, shared, _units(left)):
        shards, num_reads, max_error = result
        writer = left[unit[0]]
        writer.records.done |= shards
        writer.count(shards, num_reads, max_error)
        on_section(len(shards))


def _units(writers: Sequence[SectionWriter]) -> Iterator[Unit]:
    """The sections in which shards are wanted, so many in a unit that there are not too many."""
    num_sections = 0
    for writer in writers:
        grid = zip(writer.array.rechunking().grid, writer.plan.steps, strict=True)
        num_sections += math.prod(-(-count // step) for count, step in grid)
    # The last unit of each array may be a small one.
    size = -(-num_sections // max(MOST_UNITS - len(writers), 1))
    for number, writer in enumerate(writers):
        sections = writer.sections()
        while some := tuple(itertools.islice(sections, size)):
            yield number, some


def _write(shared: Sequence[SectionWriter], unit: Unit) -> SectionResult:
    """Write the sections of a unit. Runs on a worker."""
    number, sections = unit
    writer = shared[number].apart()
    writer.write(sections, lambda _: None)
    return writer.records.done, writer.num_reads, writer.max_error


def _shards_of(section: Section) -> list[Index]:
    """The shards of a section that are wanted, in order."""
    box, flags = section
    first = np.array([begin for begin, _ in box], np.int64)
    return [tuple(shard) for shard in (np.argwhere(flags) + first).tolist()]


def _blocks_of(job: Rechunking, section: Section) -> list[Index]:
    """The source chunks that the wanted shards of a section are made of, in order."""
    box, flags = section
    if flags.all():
        return list(itertools.product(*job.blocks_of(box)))
    ranges = job.blocks_of(box)
    is_read = np.zeros([len(part) for part in ranges], np.bool_)
    for shard in _shards_of(section):
        pairs = zip(job.blocks_of(tuple((n, n + 1) for n in shard)), ranges, strict=True)
        is_read[tuple(slice(p.start - r.start, p.stop - r.start) for p, r in pairs)] = True
    return list(map(tuple, (np.argwhere(is_read) + [part.start for part in ranges]).tolist()))


def needed_shards(recipe: Recipe, array: TargetArray) -> Flags:
    """Which shards of an array hold an element that some sample needs."""
    job = array.rechunking()
    flags = np.ones(job.grid, np.bool_)
    if recipe.windows is None:
        return flags
    covered = CoveredElements(recipe, make_layouts(recipe), array.name)

    def coverage(box: Box) -> Any:
        # Along dimensions that the selection drops, one element is left.
        begins, sizes = [0] * len(array.axes), [1] * len(array.axes)
        for number, (begin, end) in zip(array.kept, box, strict=True):
            begins[number], sizes[number] = begin, end - begin
        return covered.of_box(tuple(begins), tuple(sizes))

    if recipe.subset is None and coverage(tuple((0, size) for size in job.shape)).is_all:
        return flags
    for shard in np.ndindex(flags.shape):
        flags[shard] = not coverage(job.elements_of(tuple((n, n + 1) for n in shard))).is_empty
    return flags


def shards_of_part(needed: Flags, part: tuple[int, int]) -> Flags:
    """The shards that one part writes: neighbours, and as many as any other part."""
    number, count = part
    places = np.flatnonzero(needed)
    flags = np.zeros(needed.shape, np.bool_)
    flags.flat[places[number * len(places) // count : (number + 1) * len(places) // count]] = True
    return flags
