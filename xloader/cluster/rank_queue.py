"""The ranks of a job on the workers of a cluster: who has which rank, and what if one is lost.

::

    waiting   ranks without a worker: at first all, later those whose worker was lost
    running   ranks on workers: at most one for each thread
    done      ranks with a result

The task of a rank makes its loader on the worker, and calls the function.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import cloudpickle

from xloader.cluster.checkpoint_places import Checkpoint, CheckpointPlace, current_checkpoint
from xloader.cluster.cluster_tasks import TaskWarnings, collect_warnings, dump, pickling
from xloader.core.cores import usable_cores
from xloader.core.ranks import World
from xloader.errors import ClosedError, ClusterError, TransformError
from xloader.loader.loader import Loader
from xloader.loader.processes.finishing_process import Warned
from xloader.sources.arrays.dask_cluster import (
    release_futures,
    result_of,
    worker_threads,
    working_for_cluster,
)

_LOG: Final = logging.getLogger("xloader")

_SECONDS: Final = 0.5
"""How often the client looks for workers that are new or lost, and a task whether it is still
wanted."""

_RESULT_SECONDS: Final = 10.0
"""How long a result may take to arrive before the client looks whether its worker is lost.

The next time, the client waits twice as long.
"""


@dataclass(frozen=True, eq=False)
class RankJob:
    """All that the tasks of all ranks share. It is sent once to each worker.

    `work`: a pickle of the function, the samples and the options of their loaders.
    """

    work: bytes
    world_size: int
    place: CheckpointPlace
    state: Mapping[str, Any]

    def run(self, rank: int, shares: HostShares) -> bytes:
        """Call the function for a rank, from its last checkpoint on; the pickle of its result."""
        claim = self.place.claim(rank)
        known = self.place.result(rank)
        if known is not None:
            return known
        saved = claim.load()
        state, value = (self.state, None) if saved is None else cloudpickle.loads(saved)
        fn, samples, options = cloudpickle.loads(self.work)
        # Several sets divide the cores among them, where no number of threads is given.
        if options.get("threads") is None and not hasattr(samples, "sets"):
            processes = max(int(options.get("processes") or 0), 1)
            options = {**options, "threads": max(shares.cores() // processes, 1)}
        with samples.loader(**options, world=World(rank, self.world_size)) as loader:
            loader.load_state_dict(state)
            checkpoint = Checkpoint(claim, self.world_size, loader, value)
            with _closed_if_cancelled(loader), current_checkpoint(checkpoint):
                try:
                    result = fn(loader)
                except SystemExit as error:
                    # It would end the worker, with all that other jobs have there.
                    raise TransformError(
                        f"the function ended with sys.exit({error.code!r})",
                        remedy="return from the function, or raise an error",
                    ) from error
        advice = "return numbers and arrays; for a model, model.state_dict() on the CPU"
        with pickling("the result of a rank", result, advice):
            data = dump(result)
        claim.finish(data)
        return data


@dataclass(frozen=True)
class HostShares:
    """How many ranks may be at work at a time where a rank is."""

    on_worker: int
    on_host: int

    def cores(self) -> int:
        """Number of cores for one rank, at least 1."""
        cores = usable_cores()
        # A process that is tied to some cores of its machine shares them with no other one.
        has_own = cores < (os.cpu_count() or 1)
        return max(cores // (self.on_worker if has_own else self.on_host), 1)


def run_rank(job: RankJob, rank: int, shares: HostShares, token: str) -> tuple[bytes, list[Warned]]:
    """Do the work of one rank, as a task on a worker; see `RankJob.run`."""
    with working_for_cluster(), collect_warnings(token) as warned:
        data = job.run(rank, shares)
    return data, warned


@contextmanager
def _closed_if_cancelled(loader: Loader) -> Iterator[None]:
    """Close the loader when the task is cancelled, which ends the function at its next batch.

    dask itself cannot end a function that has begun.
    """
    from distributed import get_worker

    worker, ended = get_worker(), threading.Event()
    key, is_cancelled = worker.get_current_task(), False

    def watch() -> None:
        nonlocal is_cancelled
        while not ended.wait(_SECONDS):
            task = worker.state.tasks.get(key)
            if task is None or task.state in ("cancelled", "released", "forgotten"):
                is_cancelled = True
                loader.close()
                return

    thread = threading.Thread(target=watch, name="xloader-cancelled", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if is_cancelled:
        # A function that has caught the error of the loader has only a part of its result.
        raise ClosedError("the rank was cancelled", remedy="call xloader.dask.run again")


@dataclass(frozen=True, eq=False)
class Attempt:
    """A task of a rank that was sent to a worker."""

    rank: int
    worker: str
    future: Any


@dataclass(eq=False)
class RankQueue:
    """The ranks of one job on a cluster.

    `worker_timeout`: seconds to wait for a worker while there is none.
    """

    client: Any
    job: Any
    waiting: list[int]
    retries: int
    worker_timeout: float
    _running: list[Attempt] = field(default_factory=list)
    _num_lost: Counter[int] = field(default_factory=Counter)
    _alone_since: float | None = None

    def __post_init__(self) -> None:
        self._token = uuid.uuid4().hex[:12]
        self._num_sent = 0
        self._news = threading.Event()
        self._result_seconds = _RESULT_SECONDS

    def results(self) -> Iterator[tuple[int, bytes]]:
        """Yield ranks and the pickles of their results, as they come."""
        try:
            with TaskWarnings(self._token) as shown:
                while self.waiting or self._running:
                    threads = worker_threads(self.client)
                    self._drop_lost(threads)
                    self._send(threads)
                    self._check_workers(threads)
                    # The next look comes when a task ends, or else a little later.
                    self._news.wait(_SECONDS)
                    self._news.clear()
                    ended = [a for a in self._running if a.future.status != "pending"]
                    for attempt in ended:
                        outcome = self._result_of(attempt)
                        if outcome is not None:
                            result, warned = outcome
                            self._running.remove(attempt)
                            attempt.future.release()
                            shown.show(warned)
                            yield attempt.rank, result
        finally:
            release_futures(attempt.future for attempt in self._running)

    def _drop_lost(self, threads: Mapping[str, int]) -> None:
        """Let the ranks of lost workers wait again."""
        for attempt in [attempt for attempt in self._running if attempt.worker not in threads]:
            self._running.remove(attempt)
            attempt.future.release()
            self._num_lost[attempt.rank] += 1
            if self._num_lost[attempt.rank] > self.retries:
                raise _too_often(attempt, self._num_lost[attempt.rank])
            _LOG.warning("rank %d has lost its worker %s", attempt.rank, attempt.worker)
            self.waiting = sorted([*self.waiting, attempt.rank])

    def _send(self, threads: Mapping[str, int]) -> None:
        """Send waiting ranks to threads that have none."""
        free = Counter(threads)
        free.subtract(attempt.worker for attempt in self._running)
        for rank in list(self.waiting):
            # Of workers with as many free threads, the first by address.
            worker = max(sorted(threads), key=lambda name: free[name], default="")
            if free[worker] > 0:
                self._send_to(rank, worker, threads)
                free[worker] -= 1

    def _send_to(self, rank: int, worker: str, threads: Mapping[str, int]) -> None:
        host = _host_of(worker)
        num_ranks = len(self.waiting) + len(self._running)
        on_host = sum(number for name, number in threads.items() if _host_of(name) == host)
        shares = HostShares(min(threads[worker], num_ranks), min(on_host, num_ranks))
        future = self.client.submit(
            run_rank,
            self.job,
            rank,
            shares,
            self._token,
            key=f"xloader-rank-{rank}-{self._token}-{self._num_sent}",
            workers=[worker],
            allow_other_workers=False,
        )
        # A function of dask that waits would look for the active client, which may be another one.
        future.add_done_callback(lambda _: self._news.set())
        self._num_sent += 1
        self.waiting.remove(rank)
        self._running.append(Attempt(rank, worker, future))

    def _check_workers(self, threads: Mapping[str, int]) -> None:
        """Raise if there has been no worker for too long."""
        if threads:
            self._alone_since = None
            return
        now = time.monotonic()
        self._alone_since = now if self._alone_since is None else self._alone_since
        if now - self._alone_since > self.worker_timeout:
            raise no_worker(self.worker_timeout)

    def _result_of(self, attempt: Attempt) -> tuple[bytes, list[Warned]] | None:
        """The pickle of a result, and warnings; None if it does not arrive in time."""
        if attempt.future.status == "finished":
            try:
                outcome: tuple[bytes, list[Warned]] = attempt.future.result(self._result_seconds)
            except TimeoutError:
                self._result_seconds *= 2
                return None
            return outcome
        try:
            result_of(attempt.future)
        except Exception as error:
            if type(error).__name__ != "KilledWorker":
                error.add_note(f"Raised on rank {attempt.rank}, by worker {attempt.worker}.")
            raise
        return None


def no_worker(seconds: float) -> ClusterError:
    """The error that a cluster has no worker."""
    return ClusterError(
        f"the dask cluster has no worker after {seconds:g} s",
        remedy="start workers, for example with cluster.scale(4); where they wait in the queue of "
        "a batch system, pass a longer worker_timeout=",
    )


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]


def _too_often(attempt: Attempt, number: int) -> ClusterError:
    return ClusterError(
        f"rank {attempt.rank} has lost its worker {number} times",
        given=f"last worker {attempt.worker}",
        remedy="look into the logs of the workers. Most often they run out of memory: pass a "
        "smaller memory=, which each rank takes for itself, or start workers with more memory or "
        "with fewer threads. Where workers come and go, pass a larger retries=",
    )
