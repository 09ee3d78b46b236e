"""Training and evaluation by ranks on the workers of a dask cluster.

::

    client      checks options, plans once, and opens the place of checkpoints
    workers     one task for each rank: a loader, made there, and the user's function
    client      takes results as they come, and sends ranks of lost workers to others

The folder of a job has a file with digests, by which a later call knows the job.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from operator import attrgetter
from pathlib import Path
from types import CodeType
from typing import Any, Final

import cloudpickle
import numpy as np

from xloader.cluster.checkpoint_places import CheckpointPlace, FolderPlace, SchedulerPlace
from xloader.cluster.cluster_tasks import code_digest, dump_shared, find_cluster
from xloader.cluster.rank_queue import RankJob, RankQueue, no_worker
from xloader.core.option_checks import MOST, check_number, check_whole
from xloader.core.options import LoaderOptions, make_options
from xloader.core.ranks import World
from xloader.errors import OptionError, TargetError
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
from xloader.sources.stores.bounded_reads import local_path
from xloader.sources.stores.write_places import whole_file, writing
from xloader.transforms.steps import module_of

_JOB_FILE: Final = "job.json"
_VERSION: Final = 3

_COMPARED: Final = (
    *("batch_size", "shuffle", "seed", "drop_last", "output", "on_error", "processes"),
    *("on_device.dtype", "on_device.random", "plan.lanes", "plan.spread", "ranks.world_size"),
)
"""Options that decide which samples a rank gets, and as what."""


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
    """Call a function on the workers of a dask cluster, once for each rank, with its loader.

    Each rank's loader is made on its worker, as ``samples.loader(world=...)`` makes it. Together
    the ranks get all samples, in the batches that as many processes would get that torchrun or
    SLURM had started.

    A worker has as many ranks at a time as it has threads. Further ranks wait, so ranks must not
    wait for each other: for training with gradients that all ranks share, start one process for
    each GPU with torchrun or SLURM, without dask. An adaptive cluster does not see ranks that wait:
    ask for its workers first, as with ``cluster.scale(4)``.

    If a worker is lost, another one takes up its rank: from the last
    :meth:`xloader.dask.Checkpoint.save`, or from the beginning if there was none. So a function
    must bear being called again. If the function raises an error, all ranks are cancelled; so they
    are by Ctrl-C. A rank that is cancelled ends at its next batch with a `ClosedError`.

    Parameters
    ----------
    fn : callable
        Called as ``fn(loader)``. Its result must pickle. Functions of notebooks, lambdas and
        closures are possible; what they refer to is copied for each rank.
    samples : Samples or Interleaved
        The samples, over stores that all workers reach.
    world_size : int, optional
        Number of ranks. By default the number of workers that are there now: pass it where workers
        are still starting.
    client : distributed.Client, optional
        The cluster. By default the active client.
    path : str or path, optional
        A folder that the client and all workers reach, for checkpoints and results. If the client
        is killed, make the same call again: finished ranks are not run again, the others go on
        from their checkpoints. By default checkpoints are kept on the scheduler, for the time of
        this call. Results and checkpoints are pickles, which can run any code when they are read:
        use a folder in which only people whom you trust can write.
    overwrite : bool, default False
        Whether to begin anew if the path holds checkpoints or results.
    retries : int, default 3
        How often each rank is taken up again after its worker was lost.
    worker_timeout : float, default 300.0
        Seconds to wait for a worker while there is none.
    **loader_options
        Options of :meth:`xloader.Samples.loader`, except ``world``. ``memory``
        is for each rank. By default, ranks on one machine divide its cores as their ``threads``.

    Returns
    -------
    list
        The results of the function, by rank.

    Raises
    ------
    OptionError
        If an option is outside its range, there is no client, or the function or the samples
        cannot be sent to workers. Nothing has run then.
    TargetError
        If the path holds the checkpoints of another function, or of other options.
    StateError
        If the path holds the checkpoints of other samples.
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


def open_folder(
    path: str | os.PathLike[str],
    fn: Callable[..., Any],
    options: LoaderOptions,
    state: Mapping[str, Any],
    *,
    overwrite: bool,
) -> tuple[FolderPlace, dict[str, Any]]:
    """Open the folder of a job, which is made if it is not there; with the state of the job."""
    folder = _as_folder(path)
    earlier = _read_job(folder)
    compared = {name.rpartition(".")[2]: attrgetter(name)(options) for name in _COMPARED}
    facts = {"function": describe_function(fn), **compared}
    if earlier is not None and not overwrite:
        before = earlier["facts"]
        differing = [name for name, value in facts.items() if before.get(name) != value]
        if differing:
            raise TargetError(
                f"the folder holds the checkpoints of a job with another {', '.join(differing)}",
                given=", ".join(f"{name}={facts[name]!r}" for name in differing) + f" for {folder}",
                allowed=", ".join(f"{name}={before.get(name)!r}" for name in differing),
                remedy="pass the same as before, another path=, or overwrite=True to begin anew",
            )
        job = earlier
    else:
        token = uuid.uuid4().hex[:12]
        job = {"version": _VERSION, "token": token, "facts": facts, "state": dict(state)}
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with whole_file(folder / _JOB_FILE) as file:
            file.write(json.dumps(job, indent=1).encode())
        if earlier is not None:
            shutil.rmtree(folder / earlier["token"], ignore_errors=True)
    place = folder / job["token"]
    place.mkdir(exist_ok=True)
    return FolderPlace(place), job["state"]


def describe_function(fn: Callable[..., Any]) -> str:
    """Name of a function, and a digest of its code, which a new process finds again.

    The code of functions that it calls, and the values that it refers to, are not part of it.
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = f"{module_of(fn)}.{getattr(fn, '__qualname__', type(fn).__qualname__)}"
    inner = fn if hasattr(fn, "__code__") else getattr(fn, "__func__", type(fn).__call__)
    code = getattr(inner, "__code__", None)
    if not isinstance(code, CodeType):
        return name
    return f"{name} {code_digest(code)[:12]}"


def _as_folder(path: object) -> Path:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else b""
    if not isinstance(text, str) or not text or "://" in local_path(text):
        raise OptionError(
            "path is not the path of a folder",
            given=repr(path),
            remedy="pass a folder that the client and all workers reach under the same path",
        )
    # Workers may have another working directory.
    return Path(os.path.abspath(os.path.expanduser(local_path(text))))


def _read_job(folder: Path) -> dict[str, Any] | None:
    """The job that lies in a folder; None if nothing is there yet."""
    if not folder.exists():
        return None
    # A client that is killed while it begins a job leaves this file alone.
    partial = (folder / _JOB_FILE).with_suffix(".partial")
    if folder.is_dir() and not set(folder.iterdir()) - {partial}:
        return None
    try:
        job: dict[str, Any] = json.loads((folder / _JOB_FILE).read_bytes())
        token = job["token"]
        # It becomes part of a path.
        is_token = isinstance(token, str) and len(token) == 12 and token.isalnum()
        if job["version"] != _VERSION or not is_token or not {"facts", "state"} <= job.keys():
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TargetError(
            "the folder holds no job of xloader.dask.run of this version",
            given=str(folder),
            remedy="choose another path=, where nothing lies",
        ) from error
    return job
