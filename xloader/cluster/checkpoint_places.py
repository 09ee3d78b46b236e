"""Places of checkpoints: variables on the scheduler, or files in a folder.

A worker that takes up a rank *claims* it, which gives its attempt a number. An older attempt may
still be at work, on a worker that was only thought to be lost. It may write once more, but nothing
gets mixed up: each state holds a position and the value that belongs to it.

The folder of a job has a file with digests, by which a later call knows the job.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import CodeType
from typing import Any, Final

from xloader.cluster.cluster_tasks import code_digest, dump, pickling
from xloader.core.nbytes import show_nbytes
from xloader.core.options import LoaderOptions
from xloader.errors import ClusterError, OptionError, SourceAccessError, TargetError
from xloader.loader.loader import Loader
from xloader.sources.stores.bounded_reads import local_path
from xloader.sources.stores.write_places import whole_file, writing
from xloader.transforms.steps import module_of

MOST_ON_SCHEDULER_NBYTES: Final = 1 << 20
"""Bytes of a checkpoint that is kept on the scheduler."""

_SECONDS: Final = 10.0
"""How long a request to the scheduler may take."""


@dataclass(frozen=True)
class SchedulerPlace:
    """Checkpoints on the scheduler, in two variables for each rank."""

    token: str

    def prepare(self, client: Any, world_size: int) -> None:
        """Make the variables of all ranks."""
        for rank in range(world_size):
            owner, state = self._variables(rank, client)
            owner.set(-1)
            state.set(b"")

    def remove(self, client: Any, world_size: int) -> None:
        """Remove the variables of all ranks."""
        for rank in range(world_size):
            # An attempt that has just begun sets the owner, and then looks for the state.
            for variable in reversed(self._variables(rank, client)):
                variable.delete()

    def claim(self, rank: int) -> SchedulerClaim:
        """Take up a rank, on a worker. Older attempts at it end at their next save."""
        from distributed import get_client

        # It is made here, in the thread of the task, and serves other threads as well.
        client = get_client(timeout=_SECONDS)
        owner, state = self._variables(rank, client)
        attempt = int(_value_of(owner, rank)) + 1
        owner.set(attempt)
        return SchedulerClaim(rank, attempt, owner, state)

    def result(self, rank: int) -> bytes | None:
        """None: the client has the results of finished ranks."""
        return None

    def _variables(self, rank: int, client: Any) -> tuple[Any, Any]:
        from distributed import Variable

        name = f"xloader-{self.token}-{rank}"
        owner = Variable(f"{name}-owner", client)  # type: ignore[no-untyped-call]
        state = Variable(f"{name}-state", client)  # type: ignore[no-untyped-call]
        return owner, state


@dataclass(frozen=True, eq=False)
class SchedulerClaim:
    """One attempt at a rank, after `attempt` others, whose checkpoints are on the scheduler."""

    rank: int
    attempt: int
    owner: Any
    state: Any

    def load(self) -> bytes | None:
        """The pickle that was saved last."""
        try:
            return _value_of(self.state, self.rank) or None
        except ClusterError:
            self.owner.delete()
            raise

    def save(self, data: bytes) -> None:
        """Keep a pickle, in place of the last one."""
        if len(data) > MOST_ON_SCHEDULER_NBYTES:
            raise OptionError(
                f"a checkpoint of more than {show_nbytes(MOST_ON_SCHEDULER_NBYTES)} is too "
                "large for the scheduler",
                given=f"{show_nbytes(len(data))} on rank {self.rank}",
                remedy="pass path=, a folder that all workers reach, or save to a file of your own",
            )
        if int(_value_of(self.owner, self.rank)) != self.attempt:
            raise _superseded(self.rank, "another worker has taken it up")
        self.state.set(data)

    def finish(self, data: bytes) -> None:
        """Keep nothing: the result goes to the client."""


def _value_of(variable: Any, rank: int) -> Any:
    """The value of a variable on the scheduler, which is removed when its job ends."""
    try:
        return variable.get(timeout=_SECONDS)
    except TimeoutError as error:
        raise _superseded(rank, "its job has ended") from error


@dataclass(frozen=True)
class FolderPlace:
    """Checkpoints in a folder, in one folder for each rank.

    ::

        <folder>/rank-0003/000000.claim   the first attempt began
                           000000.state   its last checkpoint; later attempts go on from it
                           000001.claim   the second attempt began: the first one must end
                           000001.result  it has finished

    Each attempt writes files of its own, so none overwrites those of a later one.
    """

    folder: Path

    def claim(self, rank: int) -> FolderClaim:
        """Take up a rank, on a worker."""
        folder = self._folder_of(rank)
        try:
            with writing(self.folder):
                folder.mkdir(exist_ok=True)
        except SourceAccessError as error:
            if self.folder.exists():
                raise
            raise ClusterError(
                "a worker does not find the folder of this job",
                given=str(self.folder),
                remedy="pass a path= that the client and all workers reach under the same name",
            ) from error
        for attempt in itertools.count(len(list(folder.glob("*.claim")))):
            path = _file(folder, attempt, "claim")
            # Only one process makes a file that must not exist yet, on a shared disk too.
            with writing(folder), suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                break
        return FolderClaim(rank, attempt, folder)

    def result(self, rank: int) -> bytes | None:
        """The pickle of a finished rank's result; None if the rank is not finished."""
        return _newest(self._folder_of(rank), "result")

    def _folder_of(self, rank: int) -> Path:
        return self.folder / f"rank-{rank:04d}"


@dataclass(frozen=True, eq=False)
class FolderClaim:
    """One attempt at a rank whose checkpoints are files."""

    rank: int
    attempt: int
    folder: Path

    def load(self) -> bytes | None:
        """The pickle that was saved last, by any attempt before this one."""
        return _newest(self.folder, "state")

    def save(self, data: bytes) -> None:
        """Keep a pickle, in place of the last one."""
        self._write("state", data)
        self._remove_states(self.attempt)

    def finish(self, data: bytes) -> None:
        """Keep the pickle of the rank's result, in place of its states."""
        self._write("result", data)
        self._remove_states(self.attempt + 1)

    def _write(self, suffix: str, data: bytes) -> None:
        if _file(self.folder, self.attempt + 1, "claim").exists():
            raise _superseded(self.rank, "another worker has taken it up")
        try:
            with whole_file(_file(self.folder, self.attempt, suffix)) as file:
                file.write(data)
        except SourceAccessError as error:
            if self.folder.exists():
                raise
            raise _superseded(self.rank, "its job was begun anew") from error

    def _remove_states(self, end: int) -> None:
        for path in self.folder.glob("*.state"):
            if path < _file(self.folder, end, "state"):
                path.unlink(missing_ok=True)


RankClaim = SchedulerClaim | FolderClaim
CheckpointPlace = SchedulerPlace | FolderPlace


def _file(folder: Path, attempt: int, suffix: str) -> Path:
    return folder / f"{attempt:06d}.{suffix}"


def _newest(folder: Path, suffix: str) -> bytes | None:
    """The bytes of the latest attempt that has written a file with a suffix; None without any."""
    while paths := sorted(folder.glob(f"*.{suffix}")):
        # An older attempt that is still at work may just have replaced it by its own.
        with suppress(FileNotFoundError):
            return paths[-1].read_bytes()
    return None


def _superseded(rank: int, why: str) -> ClusterError:
    return ClusterError(
        f"this worker must give up rank {rank}: {why}",
        remedy="let this task end; nothing is lost. For one path=, call xloader.dask.run once",
    )


_JOB_FILE: Final = "job.json"
_VERSION: Final = 3

_COMPARED: Final = (
    *("batch_size", "shuffle", "seed", "drop_last", "steps", "output", "on_error", "processes"),
    *("on_device.dtype", "on_device.random", "plan.lanes", "plan.spread", "ranks.world_size"),
)
"""Options that decide which samples a rank gets, and as what."""


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
    # A client that is killed while it begins a job leaves such a file alone.
    if folder.is_dir() and all(path.suffix == ".partial" for path in folder.iterdir()):
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


class Checkpoint:
    """The last position and value that a rank saves, from which another worker can go on.

    Inside the function that is run, :func:`xloader.dask.checkpoint` returns it. Its ``rank`` and
    ``world_size`` are the rank that the function is called for, and the number of ranks.

    Attributes
    ----------
    attempt : int
        How often the rank was taken up before: 0 at first, 1 after its worker was lost once, and
        so on. With ``path``, attempts of earlier calls count.
    value : object
        The value that this rank saved last; None at first.
    """

    rank: int
    world_size: int
    attempt: int
    value: Any

    def __init__(self, claim: RankClaim, world_size: int, loader: Loader, value: Any) -> None:
        self.rank, self.world_size, self.attempt = claim.rank, world_size, claim.attempt
        self.value = value
        self._claim, self._loader = claim, loader
        self._mosaics: weakref.WeakSet[Any] = weakref.WeakSet()

    def save(self, value: Any = None) -> None:
        """Keep the position of the loader, after its last batch, and a value, both at one stroke.

        If the worker is lost, another one calls the function again, after this batch and with this
        value as ``checkpoint().value``. Predictions of a mosaic made in the same thread are written
        first.

        Parameters
        ----------
        value : object, optional
            Results until now, or the name of a file. It is pickled: at most 1 MiB without ``path``.

        Raises
        ------
        OptionError
            If the value cannot be pickled, or is too large.
        ClusterError
            If the rank has been taken up by another worker or another call of
            :func:`xloader.dask.run` meanwhile, as if this worker were lost.
        """
        # Otherwise nobody would make the predictions again: the next attempt begins behind them.
        for mosaic in list(self._mosaics):
            if not mosaic.is_closed:
                mosaic.flush()
        with pickling(
            "the value of a checkpoint", value, "save numbers, arrays and names of files"
        ):
            data = dump((self._loader.state_dict(), value))
        self._claim.save(data)
        self.value = value

    def __repr__(self) -> str:
        return f"Checkpoint(rank={self.rank}, world_size={self.world_size}, attempt={self.attempt})"


_CURRENT: Final[ContextVar[Checkpoint]] = ContextVar("xloader.dask.checkpoint")


@contextmanager
def current_checkpoint(current: Checkpoint) -> Iterator[None]:
    """Let `checkpoint` return a checkpoint within the ``with`` block, in this thread."""
    token = _CURRENT.set(current)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def note_mosaic(mosaic: Any) -> None:
    """Let the checkpoint of this thread, if there is one, flush a mosaic before it saves."""
    current = _CURRENT.get(None)
    if current is not None:
        current._mosaics.add(mosaic)


def checkpoint() -> Checkpoint:
    """The checkpoint of a rank of :func:`xloader.dask.run`.

    ``checkpoint.save(value)`` keeps the position of the loader and a value, as a pickle of at most
    1 MiB without ``path``. ``checkpoint.value`` is what was saved last, ``checkpoint.attempt`` how
    often the rank was taken up before. Call it in the thread of the function.

    Returns
    -------
    Checkpoint
        With what the rank has saved.

    Raises
    ------
    OptionError
        If no rank of :func:`xloader.dask.run` is at work in this thread.

    Examples
    --------
    A mean that is right however often a worker is lost:

    >>> import xloader
    >>> def sum_up(loader):
    ...     checkpoint = xloader.dask.checkpoint()
    ...     total, count = checkpoint.value or (0.0, 0)
    ...     for epoch in range(loader.epoch, 1):
    ...         for step, batch in enumerate(loader):
    ...             rows = ~batch.is_padding
    ...             total += float(batch.t2m[rows].sum())
    ...             count += int(rows.sum())
    ...             if step % 100 == 99:
    ...                 checkpoint.save((total, count))
    ...     return total, count
    """
    try:
        return _CURRENT.get()
    except LookupError:
        raise OptionError(
            "there is no checkpoint here",
            remedy="call xloader.dask.checkpoint() inside the function, in the same thread",
        ) from None
