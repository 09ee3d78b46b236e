"""Makes errors in a ``DataLoader`` worker reach the main process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils.data import get_worker_info


@contextmanager
def sendable_errors() -> Iterator[None]:
    """Replace, in a worker, an error whose class the main process cannot be sent.

    A ``DataLoader`` sends the class of an error to the main process. Functions of a script or
    notebook are sent to a worker together with the error classes that they define. Such classes
    cannot be pickled in the worker, and the main process would wait for the error for ever.
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
