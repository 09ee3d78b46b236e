"""The interface of readers of stored objects by key, and what several readers share.

Where reading does not wait, the bytes that a read returns may lie in a buffer that the calling
thread reuses. They must be decoded or copied before the same thread reads again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

from xloader.sources.retries import current
from xloader.sources.stores.bounded_reads import MOST_OBJECT_NBYTES
from xloader.sources.zarr.compressors import Bytes

Span: TypeAlias = tuple[int, int]
"""The first byte of a range, and the byte after its last."""

ABSENT: Final = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Errors that are raised for an absent object."""


class ObjectPiece(NamedTuple):
    """A piece of a stored object.

    `stop`: the byte after its last; None for the end of the object.
    """

    key: str
    start: int = 0
    stop: int | None = None
    most_nbytes: int = MOST_OBJECT_NBYTES


class Objects(Protocol):
    """Interface: stored objects, read by key. Each result is None for an absent object."""

    def get(self, key: str, most_nbytes: int = MOST_OBJECT_NBYTES) -> Bytes | None:
        """Read a whole object."""

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        """Read the end of an object, or all of it if it is shorter."""

    def get_pieces(
        self, pieces: Sequence[ObjectPiece], room_nbytes: int
    ) -> Iterator[list[Bytes | None]]:
        """Read pieces of objects in the order given, several at a time where that is cheaper."""


class Asking(Objects):
    """Base class whose requests are retried as part of the read that is being made."""

    def get(self, key: str, most_nbytes: int = MOST_OBJECT_NBYTES) -> Bytes | None:
        """Read a whole object."""
        return current().ask(key, lambda: self._get_piece(key, 0, None, most_nbytes))

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        """Read the end of an object, or all of it if it is shorter."""
        return current().ask(key, lambda: self._get_last(key, nbytes))

    def get_pieces(
        self, pieces: Sequence[ObjectPiece], room_nbytes: int
    ) -> Iterator[list[Bytes | None]]:
        """Read pieces of objects, each only when the iterator reaches it, to save memory."""
        attempts = current()
        return ([attempts.ask(piece.key, partial(self._get_piece, *piece))] for piece in pieces)

    def _get_piece(self, key: str, start: int, stop: int | None, most: int) -> Bytes | None:
        return self._get(key, most) if stop is None else self._get_range(key, start, stop)

    def _get(self, key: str, most: int) -> Bytes | None:
        raise NotImplementedError

    def _get_last(self, key: str, nbytes: int) -> Bytes | None:
        raise NotImplementedError

    def _get_range(self, key: str, start: int, stop: int) -> Bytes | None:
        raise NotImplementedError
