"""Errors on their way from a worker to the main process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils.data import get_worker_info


@contextmanager
def sendable_errors() -> Iterator[None]:
    """Raise in a worker only what the main process can be sent, and else an error that says it.

    A ``DataLoader`` sends the class of an error. Functions of a script or notebook come to a
    worker with classes of their own, which do not pickle there: the main process would wait for
    the error for ever.

    Raises
    ------
    RuntimeError
        With the name and the text of what could not be sent.

    Examples
    --------
    >>> with sendable_errors():
    ...     print("nothing to tell")
    nothing to tell
    """
    try:
        yield
    except Exception as error:
        if get_worker_info() is None or _is_sendable(type(error)):
            raise
        told = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            told.add_note(note)
        raise told from error


def _is_sendable(kind: type[Exception]) -> bool:
    try:
        pickle.dumps(kind)
    except Exception:
        return False
    return True
