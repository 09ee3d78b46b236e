"""The dask cluster that this process uses, and its errors."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from xloader.errors import ClusterError

_LOST: Final = (
    "the connection to it was lost or closed",
    "check that the scheduler is still there, and make a new client",
)

_num_tasks = 0
_lock = threading.Lock()


def active_client() -> Any:
    """The dask client that is active in this process.

    Returns
    -------
    distributed.Client or None
        None if there is none, if it can only be awaited, and while this process carries out a task
        of a cluster: a task that waits for other tasks could wait forever.
    """
    # A process that uses a cluster has imported it.
    distributed = sys.modules.get("distributed")
    if distributed is None or _num_tasks:
        return None
    try:
        client = distributed.default_client()
    except ValueError:
        return None
    return None if client.asynchronous or is_closed(client) else client


def is_closed(client: Any) -> bool:
    """Whether a client was closed."""
    return client.status in ("closing", "closed")


def check_open(client: Any) -> None:
    """Raise ``CommClosedError`` if a client was closed, as its calls may then never return."""
    from distributed.comm.core import CommClosedError

    if is_closed(client):
        raise CommClosedError("the client was closed")


@contextmanager
def working_for_cluster() -> Iterator[None]:
    """Note that this process carries out a task of a cluster. Then it computes blocks itself."""
    global _num_tasks
    with _lock:
        _num_tasks += 1
    try:
        yield
    finally:
        with _lock:
            _num_tasks -= 1


@contextmanager
def cluster_errors(what: str, client: Any = None) -> Iterator[None]:
    """Turn errors of a cluster in the ``with`` block into errors of this library.

    Errors that a task itself raised are passed on as they are.

    Parameters
    ----------
    what : str
        The work of the cluster, as a phrase such as ``"computing blocks"``.
    client : distributed.Client, optional
        The client that the block uses. What fails because it was closed is its fault, too.

    Raises
    ------
    ClusterError
        If workers died or were lost, the scheduler is gone, or tasks were cancelled.
    """
    try:
        yield
    except BaseException as error:
        told = _told_of(error)
        if told is None and isinstance(error, Exception) and client and is_closed(client):
            told = _LOST
        if told is None:
            raise
        fault, remedy = told
        raise ClusterError(
            f"the dask cluster failed while {what}: {fault}", given=str(error), remedy=remedy
        ) from error


def _told_of(error: BaseException) -> tuple[str, str] | None:
    """The fault of the cluster and its remedy; None for errors that tasks raised themselves."""
    from distributed import CancelledError, KilledWorker
    from distributed.client import ClosedClientError
    from distributed.comm.core import CommClosedError

    if isinstance(error, KilledWorker):
        return (
            "workers died each time they took up one task",
            "look into the logs of the workers; if they ran out of memory, pass a smaller memory=",
        )
    if isinstance(error, CancelledError):
        return (
            "its tasks were cancelled or lost",
            "check that the scheduler and the client are still there, and call it again",
        )
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("xloader"):
        return (
            "its workers have no xloader of this version",
            "install the same packages on the workers as here",
        )
    if isinstance(error, CommClosedError | ClosedClientError):
        return _LOST
    return None
