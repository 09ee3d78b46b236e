"""Training and evaluation by ranks on the workers of a dask cluster.

::

    client      checks options, plans once, and opens the place of checkpoints
    workers     one task for each rank: a loader, made there, and the user's function
    client      takes results as they come, and sends ranks of lost workers to others
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import cloudpickle
import numpy as np

from xloader.cluster.checkpoint_places import CheckpointPlace, SchedulerPlace, open_folder
from xloader.cluster.cluster_tasks import dump_shared, find_cluster
from xloader.cluster.rank_queue import RankJob, RankQueue, no_worker
from xloader.core.option_checks import MOST, check_number, check_whole
from xloader.core.options import make_options
from xloader.core.ranks import World
from xloader.errors import OptionError
from xloader.loader.interleaved.interleaved_loader import InterleavedLoader
from xloader.loader.loader import Loader
from xloader.samples.interleave import Interleaved
from xloader.samples.loader_verbs import make_array_loader
from xloader.samples.samples import Samples
from xloader.sources.arrays.dask_cluster import (
    active_client,
    cluster_errors,
    release_futures,
    worker_threads,
)


def run(
    fn: Callable[[Any], Any],
    samples: Samples | Interleaved,
    *,
    world_size: int | None = None,
    client: Any = None,
    path: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    retries: int = 3,
    worker_timeout: float = 300.0,
    **loader_options: Any,
) -> list[Any]:
    """Call a function with a loader on each worker of a dask cluster.

    Together the ranks get all samples, in the batches of as many processes of torchrun. A worker
    has as many ranks at a time as it has threads; others wait, so ranks must not wait for each
    other: train with shared gradients by torchrun or SLURM, without dask.

    If a worker is lost, another one takes up its rank from the last checkpoint, or from the
    beginning. If the function raises, or by Ctrl-C, all ranks end at their next batch with a
    `ClosedError`.

    Parameters
    ----------
    fn : callable
        Called as ``fn(loader)``. Its result must pickle.
    samples : Samples or Interleaved
        The samples, over stores that all workers reach.
    world_size : int, optional
        Number of ranks; by default the number of workers now.
    client : distributed.Client, optional
        The cluster; by default the active client.
    path : str or path, optional
        A folder that the client and all workers reach, for checkpoints and results: after a kill of
        the client, the same call goes on. They are pickles, which can run any code: only people
        whom you trust may write there. By default the scheduler keeps them.
    overwrite : bool, default False
        Whether to begin anew if the path holds checkpoints or results.
    retries : int, default 3
        How often each rank is taken up again after its worker was lost.
    worker_timeout : float, default 300.0
        Seconds to wait for a worker while there is none.
    **loader_options
        Options of :meth:`xloader.Samples.loader`, except ``world``. ``memory`` is for each rank.

    Returns
    -------
    list
        The results of the function, by rank.

    Raises
    ------
    OptionError
        If an option is outside its range, there is no client, or something cannot be sent to
        workers.
    TargetError, StateError
        If the path holds the checkpoints of another function, other options or other samples.
    ClusterError
        If a rank has lost its worker too often, no worker comes, or the cluster fails.
    Exception
        As the function raised it, with a note that names the rank and the worker.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xloader
    >>> from distributed import Client, LocalCluster
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> samples = xloader.open(ds).window(time=2)
    >>> def total(loader):
    ...     return sum(float(batch.t2m[~batch.is_padding].sum()) for batch in loader)
    >>> with LocalCluster(2, processes=False, dashboard_address=":0") as cluster:
    ...     with Client(cluster):
    ...         sums = xloader.dask.run(total, samples, world_size=2, output="numpy")
    >>> len(sums), sum(sums), float(ds.t2m.sum())
    (2, 780.0, 780.0)
    """
    _check_arguments(fn, samples, retries, worker_timeout, loader_options)
    client = _client_of(client, samples)
    data, fault = dump_shared((fn, samples, loader_options))
    if fault:
        raise OptionError(
            "the function cannot be sent to the workers of a cluster",
            given=fault,
            remedy="open files and load models inside the function, from files that workers reach",
        )
    with cluster_errors("running ranks", client), ExitStack() as at_end:
        if world_size is None:
            world_size = _num_workers(client, worker_timeout)
        loader = _plan(samples, world_size, loader_options)
        state = loader.state_dict()
        place: CheckpointPlace
        if path is None:
            place = SchedulerPlace(uuid.uuid4().hex[:12])
            at_end.callback(place.remove, client, world_size)
            place.prepare(client, world_size)
        else:
            place, state = open_folder(path, fn, loader.options, state, overwrite=overwrite)
            # The samples must be those of the state, and its plan must fit in the memory.
            loader.load_state_dict(state)
        known = {rank: place.result(rank) for rank in range(world_size)}
        results = {rank: result for rank, result in known.items() if result is not None}
        left = [rank for rank in range(world_size) if rank not in results]
        job = RankJob(data, world_size, place, state)
        held = client.submit(_same, job, key=f"xloader-job-{uuid.uuid4().hex[:12]}")
        at_end.callback(release_futures, [held])
        results.update(RankQueue(client, held, left, retries, worker_timeout).results())
    return [cloudpickle.loads(results[rank]) for rank in range(world_size)]


def _same(job: RankJob) -> RankJob:
    # As the result of a task, it is made again where the worker that had it is lost.
    return job


def _check_arguments(
    fn: object, samples: object, retries: int, worker_timeout: float, options: dict[str, Any]
) -> None:
    if not callable(fn):
        raise OptionError(
            "fn cannot be called", given=repr(fn), remedy="pass a function that takes a loader"
        )
    if not isinstance(samples, Samples | Interleaved):
        raise OptionError(
            "samples of this kind cannot be fanned out",
            given=type(samples).__name__,
            remedy="pass Samples with windows, or several sets from xloader.interleave",
        )
    check_whole("retries", retries, 0, MOST)
    check_number("worker_timeout", worker_timeout, 0.0)
    if "world" in options:
        raise OptionError(
            "xloader.dask.run gives each loader its rank",
            given=f"world={options['world']!r}",
            remedy="leave world= out, and pass world_size=; loader.rank tells the rank",
        )


def _client_of(client: Any, samples: Samples | Interleaved) -> Any:
    """The client of the cluster, whose workers can open the samples."""
    if client is None:
        client = active_client()
    if client is None or client is False:
        raise OptionError(
            "there is no dask cluster to run on",
            given="no active client" if client is None else "client=False",
            remedy="make a distributed.Client(address), or call fn(samples.loader(...)) yourself",
        )
    for member in samples.sets.sets if isinstance(samples, Interleaved) else (samples,):
        find_cluster(client, member.recipe, waits=False)
    return client


def _num_workers(client: Any, seconds: float) -> int:
    """Number of workers, once there is one."""
    if not worker_threads(client):
        try:
            client.wait_for_workers(1, timeout=seconds)
        except TimeoutError as error:
            raise no_worker(seconds) from error
    return max(len(worker_threads(client)), 1)


def _plan(samples: Samples | Interleaved, world_size: int, options: dict[str, Any]) -> Loader:
    """A loader that shows whether the options are right. It needs neither PyTorch nor a GPU."""
    checked = make_options(**options, world=World(0, world_size))
    if isinstance(samples, Interleaved):
        return InterleavedLoader(samples.sets, checked, make_array_loader, np.asarray)
    return make_array_loader(samples.recipe, checked)
