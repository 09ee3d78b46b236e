"""Writes the sections of one array: chunks are read into memory, then encoded shard by shard.

Encodes the shards of an array: by the libraries of the usual codecs, or through zarr.

zarr encodes each chunk by way of an event loop, which takes as long as the compression itself. So
shards with the usual codecs are put together here, as the Zarr specification defines them::

    chunk 0 | chunk 1 | ... | index: offset and size of each chunk | checksum of the index
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import zarr
from numcodecs.blosc import Blosc
from numcodecs.zstd import Zstd
from numpy.typing import NDArray
from zarr.storage import MemoryStore

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

    def key_of(self, shard: Index) -> str:
        """The key of a shard within its array."""
        return str(self._array.metadata.encode_chunk_key(shard))

    def encode(self, shard: Index, values: NDArray[Any]) -> bytes:
        """The stored bytes of a shard, given its elements that lie inside the array."""
        if self._codecs is not None:
            return self._shard_of(values) if self._is_sharded else self._chunk_of(values)
        parts = zip(shard, self._objects, self._shape, strict=True)
        place = tuple(slice(n * size, min((n + 1) * size, end)) for n, size, end in parts)
        self._array[place or ...] = values
        return bytes(self._held.pop(self.key_of(shard)).to_bytes())

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
        sharding = codecs[0]["configuration"]
        names = [codec["name"] for codec in sharding["index_codecs"]]
        if len(codecs) > 1 or sharding.get("index_location", "end") != "end":
            return None
        if names != ["bytes", "crc32c"] or not _is_little(sharding["index_codecs"][0]):
            return None
        codecs = sharding["codecs"]
    if codecs[0]["name"] != "bytes" or not _is_little(codecs[0]):
        return None
    functions = [_codec_of(codec["name"], codec.get("configuration", {})) for codec in codecs[1:]]
    known = [codec for codec in functions if codec is not None]
    return known if len(known) == len(functions) else None


def _is_little(codec: Mapping[str, Any]) -> bool:
    return bool(codec.get("configuration", {}).get("endian", "little") == "little")


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
OnSection = Callable[[int], None]
"""Called with the number of shards when those of a section are written."""


class SectionWork(NamedTuple):
    """The work on one section."""

    box: Box
    shards: list[Index]
    blocks: list[Index]


def section_work(job: Rechunking, plan: SectionPlan, wanted: Flags) -> Iterator[SectionWork]:
    """The sections in which shards are wanted, in order."""
    for box, flags in wanted_sections(job, plan, wanted):
        yield work_on(job, box, flags)


def wanted_sections(
    job: Rechunking, plan: SectionPlan, wanted: Flags
) -> Iterator[tuple[Box, Flags]]:
    """The sections in which shards are wanted, each with the flags of its shards, in order."""
    for box in boxes_of(job.grid, plan.steps):
        flags = wanted[tuple(slice(*part) for part in box)]
        if flags.any():
            yield box, flags


def work_on(job: Rechunking, box: Box, wanted: Flags) -> SectionWork:
    """The work on one section."""
    first = [begin for begin, _ in box]
    shards = [
        tuple(int(n) + b for n, b in zip(index, first, strict=True))
        for index in np.argwhere(wanted)
    ]
    ranges = job.blocks_of(box)
    if wanted.all():
        return SectionWork(box, shards, list(itertools.product(*ranges)))
    is_read = np.zeros([len(part) for part in ranges], np.bool_)
    for shard in shards:
        parts = job.blocks_of(tuple((n, n + 1) for n in shard))
        pairs = zip(parts, ranges, strict=True)
        is_read[tuple(slice(p.start - r.start, p.stop - r.start) for p, r in pairs)] = True
    blocks = [
        tuple(int(n) + r.start for n, r in zip(index, ranges, strict=True))
        for index in np.argwhere(is_read)
    ]
    return SectionWork(box, shards, blocks)


@dataclass(eq=False)
class SectionWriter:
    """Writes one array."""

    recipe: Recipe
    array: TargetArray
    metadata: bytes
    plan: SectionPlan
    records: TargetRecords
    wanted: Flags
    num_reads: int = 0
    written_nbytes: int = 0
    max_error: float = 0.0

    def apart(self) -> SectionWriter:
        """A writer of the same array that has written nothing, with records of its own."""
        records = self.records.apart()
        return replace(self, records=records, num_reads=0, written_nbytes=0, max_error=0.0)

    def run(self, on_section: OnSection) -> None:
        """Write all shards that are wanted."""
        if self.wanted.any():
            job = self.array.rechunking()
            self.write(section_work(job, self.plan, self.wanted), on_section)

    def write(self, sections: Iterable[SectionWork], on_section: OnSection) -> None:
        """Write some sections."""
        job = self.array.rechunking()
        encoder = ShardEncoder(self.array, self.metadata)
        whole, footprint = one_sample(self.recipe, self.array.name)
        group = footprint.groups[0]
        room = max(self.plan.read_room, job.max_chunk_nbytes)
        with ChunkSweep(whole, footprint, room, self.plan.num_threads) as sweep:
            for work in sections:
                box = job.elements_of(work.box)
                shape = [end - begin for begin, end in box]
                section = _HeldSection(self.array, box, np.empty(shape, self.array.source_dtype))
                # Without dimensions, the one block of the sample's window is read.
                blocks = work.blocks if self.array.dims else [(0,)]
                for begin in range(0, len(blocks), NUM_BLOCKS):
                    some = blocks[begin : begin + NUM_BLOCKS]
                    sweep.do(sweep.read(group, some, section.place))
                made: dict[str, tuple[ShardRecord, float]] = {}
                tasks = [
                    ThreadTask((), partial(self._write, encoder, section, shard, made))
                    for shard in work.shards
                ]
                with writing(self.records.store, self.records.marks):
                    sweep.do(tasks, self.plan.num_threads)
                    self.records.add({key: record for key, (record, _) in made.items()})
                # Its memory is free before that of the next section is taken.
                del section, tasks
                num_reads = sweep.num_reads - self.num_reads
                errors = (error for _, error in made.values())
                self.count((record for record, _ in made.values()), num_reads, max(errors))
                on_section(len(work.shards))

    def count(self, shards: Iterable[ShardRecord], num_reads: int, max_error: float) -> None:
        """Add what was written and read to the figures."""
        self.written_nbytes += sum(record.nbytes for record in shards)
        self.num_reads += num_reads
        self.max_error = max(self.max_error, max_error)

    def _write(
        self,
        encoder: ShardEncoder,
        section: _HeldSection,
        shard: Index,
        made: dict[str, tuple[ShardRecord, float]],
        _: Attempts,
    ) -> None:
        numbers, error = self.array.convert(section.shard(shard))
        data = encoder.encode(shard, numbers)
        key = f"{self.array.name}/{encoder.key_of(shard)}"
        self.records.store.put(self.records.prefix + key, data)
        made[key] = ShardRecord.of(data), error


@dataclass(frozen=True, eq=False)
class _HeldSection:
    """The values of a section in memory."""

    array: TargetArray
    box: Box
    values: NDArray[Any]

    def place(self, chunk: ChunkValues) -> None:
        """Copy the part of a chunk that lies in the section."""
        kept = self.array.kept
        shape = [chunk.values.shape[number] for number in kept]
        values = chunk.values.reshape(shape)
        to, of = [], []
        for number, size, (begin, end) in zip(kept, shape, self.box, strict=True):
            first = chunk.begins[number]
            low, high = max(first, begin), min(first + size, end)
            to.append(slice(low - begin, high - begin))
            of.append(slice(low - first, high - first))
        self.values[tuple(to)] = values[tuple(of)]

    def shard(self, shard: Index) -> NDArray[Any]:
        """The values of a shard."""
        places = zip(shard, self.array.objects, self.box, strict=True)
        place: list[Any] = [
            slice(n * size - begin, min((n + 1) * size, end) - begin)
            for n, size, (begin, end) in places
        ]
        # With the ellipsis, a variable without dimensions stays an array.
        return np.asarray(self.values[(*place, ...)])


def needed_shards(recipe: Recipe, array: TargetArray) -> Flags:
    """Which shards of an array hold an element that some sample needs."""
    job = array.rechunking()
    if recipe.windows is None:
        return np.ones(job.grid, np.bool_)
    covered = CoveredElements(recipe, make_layouts(recipe), array.name)
    if recipe.subset is None:
        whole = covered.of_box(*_stored_box(array, tuple((0, size) for size in job.shape)))
        if whole.is_all:
            return np.ones(job.grid, np.bool_)
    flags = np.zeros(job.grid, np.bool_)
    for shard in itertools.product(*map(range, job.grid)):
        box = job.elements_of(tuple((n, n + 1) for n in shard))
        flags[shard] = not covered.of_box(*_stored_box(array, box)).is_empty
    return flags


def _stored_box(
    array: TargetArray, box: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A box of the array as first elements and sizes along all stored dimensions."""
    begins, sizes = [0] * len(array.axes), [1] * len(array.axes)
    for number, (begin, end) in zip(array.kept, box, strict=True):
        begins[number], sizes[number] = begin, end - begin
    return tuple(begins), tuple(sizes)


def shards_of_part(needed: Flags, part: tuple[int, int]) -> Flags:
    """The shards that one part writes: neighbours, and as many as any other part."""
    number, count = part
    places = np.flatnonzero(needed)
    flags = np.zeros(needed.shape, np.bool_)
    flags.flat[places[number * len(places) // count : (number + 1) * len(places) // count]] = True
    return flags
