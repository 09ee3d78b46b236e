"""How a variable lies in its store: the objects that hold it, and how well they are compressed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from xloader.sources.chunk_sizes import Sizes


@dataclass(frozen=True)
class StoredObjects:
    """The stored objects of a variable, such as files.

    Parameters
    ----------
    shards : tuple of (int or tuple of int) or None
        Elements of each object along each dimension, if an object holds many chunks.
    stored_share : float or None
        Stored bytes for each decoded byte, of a few objects; None if their sizes are not known.
    """

    shards: tuple[Sizes, ...] | None
    stored_share: float | None


@runtime_checkable
class KnowsObjects(Protocol):
    """A source that may know the stored objects of its variables."""

    def stored_objects(self, variable: str) -> StoredObjects | None:
        """The stored objects of a variable, without reading values; None if they are not known."""
        ...


def stored_objects_of(source: object, variable: str) -> StoredObjects | None:
    """The stored objects of a variable of any source; None if they are not known."""
    return source.stored_objects(variable) if isinstance(source, KnowsObjects) else None
