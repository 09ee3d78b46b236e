"""Readers of stored objects by key: of files, and of the other kinds of open stores.

Each kind of store is read in its quickest way. Where reading does not wait, the bytes that a read
returns may lie in a buffer that the calling thread reuses. They must be decoded or copied before
the same thread reads again.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore, ObjectStore, ZipStore

from xloader.compiled.library import ADDRESS, NUMBER, address_of, find_function
from xloader.sources.retries import Attempts, current
from xloader.sources.stores.bounded_reads import (
    MOST_OBJECT_NBYTES,
    OrdinaryFiles,
    check_mode,
    check_path,
    check_size,
    plain,
)
from xloader.sources.zarr.codec_chain import SCRATCH, Bytes
from xloader.sources.zarr_adapter import (
    RangeByteRequest,
    SuffixByteRequest,
    SupportsGetSync,
    default_buffer_prototype,
    is_synchronous,
    read_zip,
    sync,
)

if TYPE_CHECKING:
    from obstore import GetOptions
    from zarr.abc.buffer import Buffer
    from zarr.abc.store import ByteRequest


Span: TypeAlias = tuple[int, int]
"""The first byte of a range, and the byte after its last."""

_ABSENT_ERRORS: Final = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Errors that are raised for an absent object."""


_ABSENT_SIZE: Final = -1
"""The number that ``read_files.c`` gives, in place of a size, for a file that is absent."""

_ARGUMENTS: Final = (ADDRESS, ADDRESS, NUMBER, ADDRESS, NUMBER, ADDRESS)

_STORED: Final = 2
"""Number of the scratch buffer for stored bytes. Chunks are decoded in buffers 0 and 1."""

_ROOM_NBYTES: Final = 1 << 22
"""Pieces of files are read together up to this many bytes. Larger pieces are read alone."""

_SPARE_NBYTES: Final = 128
"""More than the alignment of a piece, and what a compressor adds to a small chunk."""

_PENDING: Final = -(2**62)
"""The size of a piece that is not read yet."""

# With O_NONBLOCK a fifo opens at once, and can be refused. Ordinary files are not affected.
_READ_ONLY: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)


class ObjectPiece(NamedTuple):
    """A piece of a stored object.

    `stop`: the byte after its last; None for the end of the object.
    """

    key: str
    start: int = 0
    stop: int | None = None
    most_nbytes: int = MOST_OBJECT_NBYTES


Arriving: TypeAlias = Iterator[list[Bytes | None]]
"""Pieces as they arrive, some at a time; None for one of an absent object."""


class Objects:
    """Base class: stored objects, read by key. Each result is None for an absent object.

    Requests are retried as part of the read that is being made.
    """

    def get(self, key: str, most_nbytes: int = MOST_OBJECT_NBYTES) -> Bytes | None:
        """Read a whole object."""
        return next(self.get_pieces([ObjectPiece(key, most_nbytes=most_nbytes)], 0))[0]

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        """Read the end of an object, or all of it if it is shorter."""
        return next(self.get_pieces([ObjectPiece(key, -nbytes)], 0))[0]

    def get_pieces(self, pieces: Sequence[ObjectPiece], room_nbytes: int) -> Arriving:
        """Read pieces of objects in the order given, several at a time where that is cheaper.

        Here each is read only when the iterator reaches it, to save memory.
        """
        attempts = current()
        return ([attempts.ask(piece.key, partial(self._get_piece, *piece))] for piece in pieces)

    def _get_piece(self, key: str, start: int, stop: int | None, most: int) -> Bytes | None:
        """Read a piece. A negative start counts from the end of the object."""
        raise NotImplementedError


def reads_together() -> bool:
    """Whether `read_pieces` can read, because the library was compiled."""
    return find_function("xloader_read_files", _ARGUMENTS) is not None


def read_pieces(
    prefix: str, pieces: Sequence[ObjectPiece], buffer: Bytes, answers: array[int]
) -> tuple[list[Bytes | None], int]:
    """Read pieces of files into one buffer, as many as it has room for.

    The bytes of the first pieces, as views of the buffer; None for a file that is absent.
    """
    function = find_function("xloader_read_files", _ARGUMENTS)
    assert function is not None, "reads_together() says whether there is one"
    paths, offset = bytearray(), 0
    requests = array("q")
    for at, (key, start, stop, most) in enumerate(pieces):
        if not at or key != pieces[at - 1].key:
            offset = len(paths)
            paths += os.fsencode(prefix + key) + b"\0"
        requests.extend((offset, start, -1 if stop is None else stop - start, most))
    requests_at, answers_at = requests.buffer_info()[0], answers.buffer_info()[0]
    num = function(
        bytes(paths), requests_at, len(pieces), address_of(buffer), buffer.size, answers_at
    )
    if not num:
        return [], answers[1]
    buffers = [
        None if size == _ABSENT_SIZE else buffer[begin : begin + size]
        for begin, size in zip(answers[: 2 * num : 2], answers[1 : 2 * num : 2], strict=True)
    ]
    return buffers, 0


class Files(Objects):
    """The files of a directory, read into a buffer that each thread reuses.

    `prefix`: the beginning of each file's name, before its key.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self.prefix = os.path.join(root, "")

    def get_pieces(self, pieces: Sequence[ObjectPiece], room_nbytes: int) -> Arriving:
        """Read pieces of files, as many at a time as there is room for."""
        attempts, begin = current(), 0
        if not reads_together():
            yield from super().get_pieces(pieces, room_nbytes)
            return
        while begin < len(pieces):
            rest = pieces[begin:]
            answers = array("q", (_PENDING,)) * (2 * len(rest))
            # Before they are made, so that those of a thread that is given up count as well.
            attempts.num_requests += len(rest)
            read = partial(self._read_together, rest, room_nbytes, answers)
            if len({piece.key for piece in rest}) == 1:
                buffers = attempts.wait_for(rest[0].key, read)
            else:
                keys = [piece.key for piece in rest]
                buffers = attempts.wait_for(
                    keys, read, partial(_num_there, answers), partial(_awaited, answers)
                )
            attempts.num_requests -= len(rest) - len(buffers)
            if not buffers:
                # One by one, to retry what may pass, and to tell what is wrong.
                buffers = [attempts.ask(rest[0].key, partial(self._get_piece, *rest[0]))]
            begin += len(buffers)
            yield buffers
            # Views of the buffer would keep it alive when a larger one takes its place.
            del buffers

    def _read_together(
        self, pieces: Sequence[ObjectPiece], room_nbytes: int, answers: array[int]
    ) -> list[Bytes | None]:
        """Read the first pieces with one compiled call; none where that is not possible."""
        room = min(room_nbytes + len(pieces) * _SPARE_NBYTES, _ROOM_NBYTES)
        room = max(room, SCRATCH.size(_STORED))
        buffers, needed = read_pieces(self.prefix, pieces, SCRATCH.take(room, _STORED), answers)
        if needed > room:
            answers[1::2] = array("q", (_PENDING,)) * len(pieces)
            buffers, _ = read_pieces(
                self.prefix, pieces[:1], SCRATCH.take(needed, _STORED), answers
            )
        is_whole = all(data is not None for data in buffers)
        # If the whole store is gone, its chunks must not be read as fill values.
        return buffers if is_whole or os.path.isdir(self._root) else []

    def _get_piece(self, key: str, start: int, stop: int | None, most: int) -> Bytes | None:
        # Few system calls: each releases the GIL, and waits for other threads to get it back.
        path = self.prefix + key
        try:
            file = _open(path)
            try:
                if stop is None or start < 0:
                    status = os.fstat(file)
                    check_mode(status.st_mode, path)
                    start, stop, _ = slice(start, stop).indices(status.st_size)
                check_size(key, stop - start, most)
                return _read_into(file, start, SCRATCH.take(stop - start, _STORED))
            finally:
                os.close(file)
        except _ABSENT_ERRORS:
            if not os.path.isdir(self._root):
                # If the whole store is gone, its chunks must not be read as fill values.
                raise
            return None
        except OSError:
            # Opening a socket fails, and so does reading a fifo at an offset: name those clearly.
            check_path(path)
            raise


def _num_there(answers: array[int]) -> int:
    """Number of pieces that are read so far."""
    return len(answers) // 2 - answers[1::2].count(_PENDING)


def _awaited(answers: array[int]) -> int:
    """Number of the first piece that is not read yet; they may be read in any order."""
    sizes = answers[1::2]
    return sizes.index(_PENDING) if _PENDING in sizes else len(sizes)


def _open(path: str) -> int:
    try:
        return os.open(path, _READ_ONLY)
    except BlockingIOError:
        # Another process holds a lease on the file. It releases it for an open that waits.
        check_path(path)
        return os.open(path, _READ_ONLY & ~os.O_NONBLOCK)


def _read_into(file: int, start: int, buffer: Bytes) -> Bytes:
    """Fill a buffer from an offset of a file on; shorter if the file ends before."""
    filled = _read_at(file, buffer, start)
    # One call reads at most 2 GiB, and a file on a network may give less.
    while filled < buffer.size:
        more = _read_at(file, buffer[filled:], start + filled)
        if not more:
            return buffer[:filled]
        filled += more
    return buffer


def _read_at(file: int, buffer: Bytes, start: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(file, [buffer.data], start)
    os.lseek(file, start, os.SEEK_SET)
    data = os.read(file, buffer.size)
    buffer[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data)


def is_waiting(store: Store) -> bool:
    """Whether reading a store mostly waits, because it can only be read asynchronously."""
    store = plain(store)
    return not (is_synchronous(store) or isinstance(store, ZipStore))


def objects_of(store: Store) -> Objects:
    """Make the reader for the objects of an open store."""
    store = plain(store)
    if type(store) in (LocalStore, OrdinaryFiles):
        return Files(str(cast("LocalStore", store).root))
    if type(store) is ZipStore:
        return _OneByOne(partial(read_zip, store))
    if is_synchronous(store):
        read, prototype = cast("SupportsGetSync", store).get_sync, default_buffer_prototype()
        return _OneByOne(lambda key, wanted: read(key, prototype=prototype, byte_range=wanted))
    return OfObstore(store) if type(store) is ObjectStore else Asynchronous(store)


@dataclass(frozen=True, eq=False, repr=False)
class _OneByOne(Objects):
    """The objects of a store that is read with one direct call for each piece, without a wait."""

    read: Callable[[str, ByteRequest | None], Buffer | None]

    def _get_piece(self, key: str, start: int, stop: int | None, most: int) -> Bytes | None:
        data = _as_bytes(self.read(key, _request(start, stop)))
        check_size(key, 0 if data is None else data.size, most)
        return data


class Asynchronous(Objects):
    """The objects of an asynchronous store, read on zarr's own event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prototype = default_buffer_prototype()

    def get_pieces(self, pieces: Sequence[ObjectPiece], room_nbytes: int) -> Arriving:
        """Read pieces of objects, those of one object concurrently."""
        attempts = current()
        for key, group in groupby(pieces, key=lambda piece: piece.key):
            read = partial(self._read_together, attempts, list(group))
            yield list(map(_as_bytes, attempts.ask(key, read)))

    def _read_together(
        self, attempts: Attempts, pieces: Sequence[ObjectPiece]
    ) -> list[Buffer | None]:
        limit = asyncio.Semaphore(zarr.config.get("async.concurrency") or len(pieces))

        async def get(piece: ObjectPiece) -> Buffer | None:
            """Read one piece of the object, once fewer requests than the limit are under way."""
            key, start, stop, most = piece
            wanted = _request(start, stop)
            async with limit:
                buffer = await attempts.ask_async(
                    key, lambda: self._store.get(key, self._prototype, wanted)
                )
            check_size(key, 0 if buffer is None else len(buffer), most)
            return buffer

        async def gather() -> list[Buffer | None]:
            return await asyncio.gather(*map(get, pieces))

        return sync(gather())


class OfObstore(Objects):
    """The objects of an obstore store, read without zarr's event loop where possible.

    That loop is one thread for all requests of the process. obstore's own calls let other threads
    run while they wait, and need a third of the processor time.
    """

    def __init__(self, store: ObjectStore[Any]) -> None:
        import obstore

        self._obstore = obstore
        self._inner = store.store
        self._by_zarr = Asynchronous(store)

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        """Read the end of an object."""
        try:
            return super().get_last(key, nbytes)
        except self._obstore.exceptions.NotSupportedError:
            # Azure cannot read the last bytes of an object. zarr then requests its size first.
            return self._by_zarr.get_last(key, nbytes)

    def get_pieces(self, pieces: Sequence[ObjectPiece], room_nbytes: int) -> Arriving:
        """Read pieces of objects: a single one directly, several of one through zarr."""
        for _, group in groupby(pieces, key=lambda piece: piece.key):
            members = list(group)
            if len(members) == 1:
                yield from super().get_pieces(members, room_nbytes)
            else:
                yield from self._by_zarr.get_pieces(members, room_nbytes)

    def _get_piece(self, key: str, start: int, stop: int | None, most: int) -> Bytes | None:
        with suppress(*_ABSENT_ERRORS):
            if stop is not None:
                return _view(self._obstore.get_range(self._inner, key, start=start, end=stop))
            options: GetOptions = {"range": {"suffix": -start}} if start else {}
            answer = self._obstore.get(self._inner, key, options=options)
            # Known from the head of the answer, before the bytes come.
            check_size(key, answer.meta["size"], most)
            return _view(answer.bytes())
        return None


def _request(start: int, stop: int | None) -> ByteRequest | None:
    """A piece as zarr's stores take it; None for a whole object."""
    if stop is not None:
        return RangeByteRequest(start, stop)
    return SuffixByteRequest(-start) if start else None


def _as_bytes(buffer: Buffer | None) -> Bytes | None:
    return None if buffer is None else np.asarray(buffer.as_numpy_array(), np.uint8)


def _view(buffer: Any) -> Bytes:
    """The memory of a buffer from obstore as an array, without a copy."""
    return np.frombuffer(buffer, np.uint8)
