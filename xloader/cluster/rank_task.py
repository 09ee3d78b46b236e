"""The task of one rank, on a worker: its loader is made there, and the function is called."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import cloudpickle

from xloader.cluster.checkpoint_places import Checkpoint, CheckpointPlace, current_checkpoint
from xloader.cluster.cluster_tasks import collect_warnings, dump, pickling
from xloader.core.cores import usable_cores
from xloader.core.ranks import World
from xloader.errors import ClosedError, TransformError
from xloader.loader.loader import Loader
from xloader.loader.processes.finishing_process import Warned
from xloader.sources.arrays.dask_cluster import working_for_cluster

_SECONDS: Final = 0.5
"""How often a task looks whether its result is still wanted."""


@dataclass(frozen=True, eq=False)
class RankWork:
    """The work of all ranks: ``samples`` are `Samples` or `Interleaved`."""

    fn: Callable[[Any], Any]
    samples: Any
    options: Mapping[str, Any]

    def loader(self, rank: int, world_size: int, shares: HostShares) -> Loader:
        """The loader of a rank."""
        options = dict(self.options)
        # Several sets divide the cores among them, where no number of threads is given.
        if options.get("threads") is None and not hasattr(self.samples, "sets"):
            processes = max(int(options.get("processes") or 0), 1)
            options["threads"] = max(shares.cores() // processes, 1)
        loader: Loader
        loader = self.samples.loader(**options, world=World(rank, world_size))
        return loader


@dataclass(frozen=True, eq=False)
class RankJob:
    """All that the tasks of all ranks share. It is sent once to each worker."""

    data: bytes
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
        work: RankWork = cloudpickle.loads(self.data)
        with work.loader(rank, self.world_size, shares) as loader:
            loader.load_state_dict(state)
            checkpoint = Checkpoint(claim, self.world_size, loader, value)
            with _closed_if_cancelled(loader), current_checkpoint(checkpoint):
                try:
                    result = work.fn(loader)
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
