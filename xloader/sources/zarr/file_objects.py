"""Files of a directory as stored objects."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np

from xloader.compiled.library import ADDRESS, NUMBER, address_of, find_function
from xloader.sources.retries import current
from xloader.sources.stores.bounded_reads import MOST_OBJECT_NBYTES, check_size
from xloader.sources.stores.ordinary_files import check_mode, check_path
from xloader.sources.zarr.compressors import Bytes
from xloader.sources.zarr.object_protocol import ABSENT, Asking, ObjectPiece
from xloader.sources.zarr.plain_decoding import SCRATCH

_ABSENT: Final = -1
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
        None if size == _ABSENT else buffer[begin : begin + size]
        for begin, size in zip(answers[: 2 * num : 2], answers[1 : 2 * num : 2], strict=True)
    ]
    return buffers, 0


class Files(Asking):
    """The files of a directory, read into a buffer that each thread reuses.

    `prefix`: the beginning of each file's name, before its key.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self.prefix = os.path.join(root, "")

    def get(self, key: str, most_nbytes: int = MOST_OBJECT_NBYTES) -> Bytes | None:
        """Read a whole file."""
        return next(self.get_pieces([ObjectPiece(key, most_nbytes=most_nbytes)], 0))[0]

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        """Read the end of a file, or all of it if it is shorter."""
        return next(self.get_pieces([ObjectPiece(key, -nbytes)], 0))[0]

    def get_pieces(
        self, pieces: Sequence[ObjectPiece], room_nbytes: int
    ) -> Iterator[list[Bytes | None]]:
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
        """Read some bytes of a file. The arguments are those of a slice of all its bytes."""
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
        except ABSENT:
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
