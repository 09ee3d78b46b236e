"""Tasks of a job on the workers of a dask cluster: a few at a time, whatever the size of the job.

Each task gets what all share, which is sent once to each worker, and one *unit* of the work, which
is small. Results come back in the order in which tasks end::

    client       unit 7   unit 8   unit 9 ...          units wait here, not on the scheduler
    scheduler    unit 3 ... unit 6                     those of the workers, and a few more
    workers      [shared] unit 3   [shared] unit 4     one task a thread
"""

from __future__ import annotations

import hashlib
import sys
import threading
import uuid
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final, Self, TypeVar

import cloudpickle

from xloader.core.messages import warn_caller
from xloader.errors import (
    ChunkWarning,
    ClusterError,
    ClusterWarning,
    MemoryBudgetError,
    OptionError,
    TransformError,
)
from xloader.loader.processes.finishing_process import Warned, forward_warnings
from xloader.sources.arrays.dask_cluster import (
    active_client,
    check_open,
    cluster_errors,
    is_closed,
    release_futures,
    result_of,
    waiting_in_task,
    worker_threads,
    working_for_cluster,
)

_lock = threading.Lock()
_collected: list[Warned] = []
_num_tasks = 0
_replaced = ExitStack()
_jobs_here: set[str] = set()
"""Tokens of the jobs whose tasks this process waits for."""


class TaskWarnings:
    """Gives the warnings of tasks in the process that waits. Use it in a ``with`` statement."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._shown: set[tuple[str, type[Warning]]] = set()

    def __enter__(self) -> Self:
        _jobs_here.add(self._token)
        return self

    def __exit__(self, *_: object) -> None:
        _jobs_here.discard(self._token)

    def show(self, warned: Sequence[Warned]) -> None:
        """Give the warnings of a task, but those that another task has given."""
        for warning in warned:
            key = _text_of(warning), warning.category
            if key not in self._shown:
                self._shown.add(key)
                warn_caller(warning.message, warning.category)  # type: ignore[arg-type]


def _text_of(warned: Warned) -> str:
    """The part of a warning in which those of several processes agree."""
    if issubclass(warned.category, ChunkWarning):
        # Each process names the first absent chunk of a store that it meets itself.
        return warned.message.partition(" is absent from ")[2]
    return warned.message


@contextmanager
def collect_warnings(token: str) -> Iterator[list[Warned]]:
    """Collect the warnings of this process while a task runs.

    Warnings of a task that fails become notes of its error.
    """
    global _num_tasks
    collected: list[Warned] = []
    if token in _jobs_here:
        yield collected
        return
    with _lock:
        _num_tasks += 1
        if _num_tasks == 1:
            _replaced.enter_context(warnings.catch_warnings())
            forward_warnings(_collected.append)
    try:
        yield collected
    except BaseException as error:
        for warning in _end():
            error.add_note(f"{warning.category.__name__}: {warning.message}")
        raise
    collected += _end()


def _end() -> list[Warned]:
    global _num_tasks
    with _lock:
        _num_tasks -= 1
        if not _num_tasks:
            _replaced.close()
        collected = list[Any](_collected)
        _collected.clear()
    return collected


MOST_SHARED_NBYTES: Final = 8 << 20
"""Bytes of a pickle that is sent to workers. The scheduler keeps it too."""

_NUM_AHEAD: Final = 2
"""Tasks that the scheduler holds for each thread of a worker, so that none runs out of work."""

MOST_UNITS: Final = 10_000
"""Most units of a job. A larger job has larger units."""

_UNITS_A_THREAD: Final = 4
_MOST_UNIT_NBYTES: Final = 1 << 28
"""A thread gets at least so many units, if there are enough chunks; and a unit has so many bytes at
most, unless there would be too many units."""

Shared = TypeVar("Shared")
Unit = TypeVar("Unit")
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class ClusterTasks:
    """A dask cluster on which pieces of a job are computed."""

    client: Any

    @property
    def num_threads(self) -> int:
        """Number of threads of all workers that are there now; at least 1."""
        return max(sum(self._threads()), 1)

    def task_memory(self, memory_nbytes: int) -> int:
        """Of the memory that each worker process may take, the share of one task."""
        return memory_nbytes // self.most_threads_of_worker

    @property
    def most_threads_of_worker(self) -> int:
        """Most threads of one worker, which runs as many tasks at a time; at least 1."""
        return max(self._threads(), default=1)

    @property
    def most_running(self) -> int:
        """Most tasks that the scheduler holds."""
        return _NUM_AHEAD * self.num_threads

    def unit_nbytes(self, total_nbytes: int, most_units: int = MOST_UNITS) -> int:
        """Decoded bytes of a unit of work.

        Each thread gets several units, so that all end at about the same time.
        """
        share = total_nbytes // (_UNITS_A_THREAD * self.num_threads)
        return max(min(share, _MOST_UNIT_NBYTES), -(-total_nbytes // most_units), 1)

    def _threads(self) -> list[int]:
        """Number of threads of each worker that is there now."""
        with cluster_errors("looking for its workers", self.client):
            return list(worker_threads(self.client).values())

    def wait_for_worker(self) -> None:
        """Wait for a worker, where there is none: a cluster may start its workers for tasks.

        How many threads share the memory of a worker is known only then.
        """
        if not self._threads():
            warn_caller(
                "the dask cluster has no worker yet: this job waits for the first one. "
                "client=False runs it on threads of this process",
                ClusterWarning,
            )
        while not self._threads():
            self.call("waiting for a worker", bool)

    @contextmanager
    def memory_errors(self, memory_nbytes: int) -> Iterator[None]:
        """Turn what a task lacks of memory, in the ``with`` block, into what a worker lacks."""
        try:
            yield
        except MemoryBudgetError as error:
            count = self.most_threads_of_worker
            if count == 1 or not error.minimum_nbytes:
                raise
            raise MemoryBudgetError(
                error.what,
                given=f"memory={memory_nbytes} bytes",
                minimum_nbytes=count * error.minimum_nbytes,
                remedy=error.instead,
                num_sharing=count,
            ) from error

    def run(
        self,
        what: str,
        work: Callable[[Shared, Unit], Result],
        shared: Shared,
        units: Iterable[Unit],
    ) -> Generator[tuple[Unit, Result], None, None]:
        """Do some work for each unit on the workers, and yield results as they come.

        A task whose worker is lost is done again by another worker. Tasks that are left when the
        iterator is closed are cancelled. Warnings of tasks are given here, each text once.
        """
        from distributed import as_completed

        client, token = self.client, uuid.uuid4().hex[:12]
        # The dashboard shows the part of a key before its first number.
        name = "-".join(("xloader", *what.split()))
        shown = TaskWarnings(token)
        waiting = enumerate(units)
        running: dict[Any, Unit] = {}
        held: list[Any] = []
        try:
            with shown, cluster_errors(what, client), waiting_in_task():
                check_open(client)
                # As the result of a task, it is made again where the worker that had it is lost.
                held.append(client.submit(_load, dump(shared), key=f"{name}-shared-{token}"))
                done: Any = as_completed([], loop=client.loop)  # type: ignore[no-untyped-call]
                room = self.most_running
                while True:
                    while len(running) < room and (numbered := next(waiting, None)) is not None:
                        number, unit = numbered
                        key = f"{name}-{token}-{number}"
                        future = client.submit(_do, work, held[0], unit, token, key=key)
                        running[future] = unit
                        done.add(future)
                    if not running:
                        return
                    future = next(done)
                    result, warned = result_of(future)
                    unit = running.pop(future)
                    # Its result is forgotten by the cluster before the next one comes.
                    del future
                    shown.show(warned)
                    room = max(room, self.most_running)
                    yield unit, result
        finally:
            release_futures((*running, *held))

    def call(self, what: str, function: Callable[..., Result], *args: Any) -> Result:
        """Call a function on one worker, and return its result."""
        result: Result
        ((_, result),) = self.run(what, _call, (function, args), [0])
        return result

    def ask_workers(self, what: str, function: Callable[..., Result], *args: Any) -> list[Result]:
        """Call a function in each worker process at once, beside the tasks that it works on."""
        with cluster_errors(what, self.client):
            check_open(self.client)
            return list(self.client.run(function, *args, on_error="ignore").values())


def find_cluster(
    client: Any,
    recipe: object,
    beside: object = None,
    beside_nbytes: Callable[[], int] = int,
    *,
    waits: bool = True,
) -> ClusterTasks | None:
    """The cluster on which a job over samples runs; None for the threads of this process.

    `client`: None stands for the active client, if there is one and workers can open what the
    samples are of.
    """
    if client is False:
        return None
    dask_client = active_client() if client is None else _checked(client)
    if dask_client is None:
        return None
    what, (data, fault) = "the samples", dump_shared(recipe)
    if not fault:
        what, (_, fault) = "the function or mask", dump_shared(beside, len(data) + beside_nbytes())
    if not fault:
        tasks = ClusterTasks(dask_client)
        if waits:
            tasks.wait_for_worker()
        return tasks
    if client is None:
        warn_caller(
            f"this job runs on threads of this process and not on the dask cluster, because {what} "
            f"cannot be sent to workers: {fault}. Pass client=False if that is meant",
            ClusterWarning,
        )
        return None
    raise OptionError(
        f"{what} cannot be sent to the workers of a cluster",
        given=fault,
        remedy="write the data to a store that the workers reach, pass a mask along fewer "
        "dimensions and a function that holds little data, or pass client=False",
    )


def _checked(client: Any) -> Any:
    """The client, if it is one that can be used here."""
    # A process that has a client has imported it.
    distributed = sys.modules.get("distributed")
    if distributed is None or not isinstance(client, distributed.Client):
        fault = repr(client)
    elif client.asynchronous:
        fault = "an asynchronous client"
    elif is_closed(client):
        fault = "a client that was closed"
    else:
        return client
    raise OptionError(
        "client is not a dask client that can be used here",
        given=fault,
        remedy="pass a distributed.Client, None for the active one, or False for this process",
    )


@contextmanager
def pickling(what: str, value: object, remedy: str) -> Iterator[None]:
    """Name what cannot be pickled in the ``with`` block."""
    try:
        yield
    except Exception as error:
        raise OptionError(
            f"{what} cannot be pickled",
            given=f"a {type(value).__name__} ({type(error).__name__}: {error})",
            remedy=remedy,
        ) from error


def dump(value: object) -> bytes:
    """Pickle a value for workers, functions of a notebook among it."""
    return bytes(cloudpickle.dumps(value))


def dump_shared(value: object, nbytes_beside: int = 0) -> tuple[bytes, str]:
    """Pickle a value for all workers; and say why it cannot be sent to them, if it cannot."""
    try:
        data = dump(value)
    except Exception as error:
        return b"", f"{type(error).__name__}: {error}"
    nbytes = len(data) + nbytes_beside
    fault = f"a pickle of {nbytes:,} bytes, where {MOST_SHARED_NBYTES:,} are allowed"
    return data, fault if nbytes > MOST_SHARED_NBYTES else ""


def code_digest(code: CodeType) -> str:
    """SHA-256 of the instructions, names and constants of a function and of those within it.

    The code of functions that it calls, and the values that it refers to, are not part of it.
    """
    return hashlib.sha256(repr(list(_facts(code))).encode()).hexdigest()


def _facts(code: CodeType) -> Iterator[object]:
    yield code.co_code
    yield code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _facts(value)
        else:
            # A set has another order in each process.
            yield sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)


def _load(data: bytes) -> Any:
    try:
        return cloudpickle.loads(data)
    except (ImportError, AttributeError) as error:
        raise ClusterError(
            "a worker of the dask cluster lacks a module, or has another version of it",
            given=f"{type(error).__name__}: {error}",
            remedy="install the module on the workers, or send it: client.upload_file(path), or "
            "cloudpickle.register_pickle_by_value(module) before this call",
        ) from error


def _do(
    work: Callable[[Any, Any], Result], shared: Any, unit: Any, token: str
) -> tuple[Result, list[Warned]]:
    with working_for_cluster(), collect_warnings(token) as warned:
        try:
            result = work(shared, unit)
        except (SystemExit, KeyboardInterrupt) as error:
            # dask would end the worker, and the client would wait forever.
            raise TransformError(
                "a function that was called in a task of a cluster tried to end the process",
                given=repr(error),
                remedy="raise an exception of another kind there",
            ) from error
    return result, warned


def _call(shared: tuple[Callable[..., Any], tuple[Any, ...]], _: int) -> Any:
    function, args = shared
    return function(*args)
