"""The dask cluster that this process uses, and its errors."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from xloader.errors import ClusterError

_LOST: Final = (
    "the connection to it was lost or closed",
    "check that the scheduler is still there, and make a new client",
)

_ANSWER_SECONDS: Final = 30.0
"""How long a scheduler may take to tell its workers."""

_num_tasks = 0
_settings: Any = None
_worker: Any = None
_lock = threading.Lock()


def active_client() -> Any:
    """The dask client that is active in this process."""
    # A process that uses a cluster has imported it.
    distributed = sys.modules.get("distributed")
    if distributed is None or _num_tasks:
        return None
    try:
        client = distributed.default_client()
    except ValueError:
        return None
    if client.asynchronous or is_closed(client) or is_in_task():
        return None
    # A worker makes a client for its tasks active in its process, for good.
    return None if client.id.startswith("Client-worker-") else client


def is_in_task() -> bool:
    """Whether the calling thread carries out a task of a cluster."""
    from distributed import get_worker

    try:
        get_worker()
    except ValueError:
        return False
    return True


@contextmanager
def waiting_in_task() -> Iterator[None]:
    """Wait for tasks of a cluster, in a ``with`` block that may itself run in a task.

    Then the task gives its thread back to the worker meanwhile, as in dask's own ``.compute()``.
    """
    from distributed import rejoin, secede
    from distributed.threadpoolexecutor import thread_state

    # Tasks that have already given it back do not take it again.
    if not is_in_task() or not getattr(thread_state, "proceed", False):
        yield
        return
    secede()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        rejoin()  # type: ignore[no-untyped-call]


def is_closed(client: Any) -> bool:
    """Whether a client was closed."""
    return client.status in ("closing", "closed")


def check_open(client: Any) -> None:
    """Raise ``CommClosedError`` if a client was closed, as its calls may then never return."""
    from distributed.comm.core import CommClosedError

    if is_closed(client):
        raise CommClosedError("the client was closed")


def worker_threads(client: Any) -> dict[str, int]:
    """Number of threads of each worker that is there now, at least 1, by address."""
    check_open(client)
    # `client.nthreads` may wait for ever on a client that is closed meanwhile.
    counts = client.sync(client.scheduler.ncores, callback_timeout=_ANSWER_SECONDS)
    return {address: max(number, 1) for address, number in counts.items()}


def release_futures(futures: Iterable[Any]) -> None:
    """Let the cluster forget results, and cancel the tasks that nobody else waits for.

    Unlike ``client.cancel``, this returns at once, also where the client was closed.
    """
    for future in futures:
        with suppress(Exception):
            future.release()


def result_of(future: Any) -> Any:
    """The result of a future that has ended.

    ``future.result()`` may wait for ever on a client that is closed meanwhile.
    """
    seconds = _ANSWER_SECONDS
    while True:
        check_open(future.client)
        try:
            return future.result(seconds)
        except TimeoutError:
            # A task may have raised this one itself.
            if future.status == "error":
                raise
        seconds *= 2


def client_of_worker() -> Any:
    """The client with which a worker of a cluster fetches values, while it carries out a task.

    None if this process carries out no task of a cluster.
    """
    import dask

    with _lock:
        # dask's own ``get_client`` knows the worker only on the thread of the task itself.
        if _worker is None:
            return None
        client = _worker._get_client()
        # A new client has made itself dask's scheduler in this process.
        dask.config.set(scheduler="synchronous")
        return client


@contextmanager
def working_for_cluster() -> Iterator[None]:
    """Note that this process carries out a task of a cluster. Then it computes blocks itself.

    Functions in blocks that call ``.compute()`` themselves compute on their own thread. By dask's
    default, they would wait for other tasks of the cluster.
    """
    global _num_tasks, _settings, _worker
    import dask
    from distributed import get_worker

    with _lock:
        if not _num_tasks:
            with suppress(ValueError):
                _worker = get_worker()
            # dask's settings are those of the process.
            _settings = dask.config.set(scheduler="synchronous")
        _num_tasks += 1
    try:
        yield
    finally:
        with _lock:
            _num_tasks -= 1
            if not _num_tasks:
                _settings.__exit__(None, None, None)
                _forget_closed_scheduler()
                _worker = None


def _forget_closed_scheduler() -> None:
    """Undo a setting that names a client as dask's scheduler which was closed meanwhile.

    So it is where workers are threads of the process that has the client.
    """
    import dask
    from distributed import default_client

    if dask.config.get("scheduler", None) not in ("dask.distributed", "distributed"):
        return
    try:
        default_client()  # type: ignore[no-untyped-call]
    except ValueError:
        dask.config.config.pop("scheduler", None)


def compute_synchronously() -> None:
    """Have dask compute on the calling thread, in all of this process and for good.

    Called at the start of a worker process, in which no scheduler may be started. The main process
    is left as it is.
    """
    if multiprocessing.parent_process() is None:
        return
    os.environ["DASK_SCHEDULER"] = "synchronous"
    dask = sys.modules.get("dask")
    # dask reads the environment when it is imported.
    if dask is not None:
        dask.config.set(scheduler="synchronous")


@contextmanager
def cluster_errors(what: str, client: Any = None) -> Iterator[None]:
    """Turn errors of a cluster in the ``with`` block into errors of this library.

    Errors that a task itself raised are passed on as they are.
    """
    try:
        yield
    except BaseException as error:
        explanation = _explanation_of(error)
        if explanation is None and isinstance(error, Exception) and client and is_closed(client):
            explanation = _LOST
        if explanation is None:
            raise
        fault, remedy = explanation
        raise ClusterError(
            f"the dask cluster failed while {what}: {fault}", given=str(error), remedy=remedy
        ) from error


def _explanation_of(error: BaseException) -> tuple[str, str] | None:
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
    # dask's own error for a client whose loop has ended with it.
    is_ended = type(error) is RuntimeError and str(error) == "IOLoop is closed"
    if is_ended or isinstance(error, CommClosedError | ClosedClientError):
        return _LOST
    return None
