"""The interface of readers of stored objects by key, and what several readers share.

Where reading does not wait, the bytes that a read returns may lie in a buffer that the calling
thread reuses. They must be decoded or copied before the same thread reads again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

from xloader.sources.retries import current
from xloader.sources.zarr.compressors import Bytes

Span: TypeAlias = tuple[int, int]
"""The first byte of a range, and the byte after its last."""

ABSENT: Final = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Errors that are raised for an absent object."""


class Objects(Protocol):
    """Interface: stored objects, read by key. Each result is None for an absent object."""

    def get(self, key: str) -> Bytes | None:
        """Read a whole object.

        Parameters
        ----------
        key : str
            Key of the object.

        Returns
        -------
        numpy.ndarray of uint8 or None
            Its bytes, or None if it is absent.
        """
        ...

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        """Read the end of an object, or all of it if it is shorter.

        Parameters
        ----------
        key : str
            Key of the object.
        nbytes : int
            Number of bytes.

        Returns
        -------
        numpy.ndarray of uint8 or None
            The bytes, or None if the object is absent.
        """
        ...

    def get_many(self, keys: Sequence[str], room_nbytes: int) -> Iterator[list[Bytes | None]]:
        """Read whole objects, several at a time where that is cheaper.

        Parameters
        ----------
        keys : sequence of str
            Keys of the objects.
        room_nbytes : int
            Memory for objects that are read at a time, in bytes. A larger one is read alone.

        Returns
        -------
        iterator of list of (numpy.ndarray of uint8 or None)
            The objects in the order given, those of one list read together; None for an absent one.
            By default each is read alone, when the iterator reaches it.
        """
        return ([self.get(key)] for key in keys)

    def get_ranges(self, key: str, spans: Sequence[Span]) -> Iterator[Bytes | None]:
        """Read parts of an object, each with one request.

        Parameters
        ----------
        key : str
            Key of the object.
        spans : sequence of (int, int)
            First byte and end of each part. A part that reaches past the object's end comes back
            shorter.

        Returns
        -------
        iterator of (numpy.ndarray of uint8 or None)
            The bytes of each part, in the order given.
        """
        ...


class Asking(Objects):
    """Base class whose requests are retried as part of the read that is being made."""

    def get(self, key: str) -> Bytes | None:
        """Read a whole object."""
        return current().ask(key, lambda: self._get(key))

    def get_last(self, key: str, nbytes: int) -> Bytes | None:
        """Read the end of an object, or all of it if it is shorter."""
        return current().ask(key, lambda: self._get_last(key, nbytes))

    def get_ranges(self, key: str, spans: Sequence[Span]) -> Iterator[Bytes | None]:
        """Read parts of an object, each only when the iterator reaches it, to save memory."""
        attempts = current()
        return (attempts.ask(key, partial(self._get_range, key, *span)) for span in spans)

    def _get(self, key: str) -> Bytes | None:
        raise NotImplementedError

    def _get_last(self, key: str, nbytes: int) -> Bytes | None:
        raise NotImplementedError

    def _get_range(self, key: str, start: int, stop: int) -> Bytes | None:
        raise NotImplementedError
