"""The checkpoint of a rank: what a function in `xloader.dask.run` saves, and gets back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from xloader.cluster.checkpoint_places import RankClaim
from xloader.cluster.noted_mosaics import WaitingPredictions
from xloader.errors import OptionError
from xloader.loader.interleaved.interleaved_loader import InterleavedLoader
from xloader.loader.loader import Loader


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

    def __init__(
        self,
        claim: RankClaim,
        world_size: int,
        loader: Loader | InterleavedLoader,
        value: Any,
        dump: Callable[[object], bytes],
        mosaics: Iterable[WaitingPredictions],
    ) -> None:
        self.rank, self.world_size, self.attempt = claim.rank, world_size, claim.attempt
        self.value = value
        self._claim, self._loader, self._dump = claim, loader, dump
        self._mosaics = mosaics

    def save(self, value: Any = None) -> None:
        """Keep the position of the loader, after its last batch, and a value, both at one stroke.

        If the worker is lost, another one calls the function again: with a loader that goes on
        after this batch, and with this value as ``checkpoint().value``. Predictions that wait in
        memory for their mosaic are written to disk first, if the function has made the mosaic in
        the thread in which it is called.

        Parameters
        ----------
        value : object, optional
            Results until now, such as sums, or the name of a file with the weights of a model. It
            is pickled: at most 1 MiB without ``path``.

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
        try:
            data = self._dump((self._loader.state_dict(), value))
        except Exception as error:
            raise OptionError(
                "the value of a checkpoint cannot be pickled",
                given=f"a {type(value).__name__} ({type(error).__name__}: {error})",
                remedy="save numbers, arrays and names of files",
            ) from error
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


def checkpoint() -> Checkpoint:
    """The checkpoint of the rank that this function is called for, in `xloader.dask.run`.

    Call it in the thread in which the function is called, and hand it on to others.

    Returns
    -------
    Checkpoint
        With what the rank has saved.

    Raises
    ------
    OptionError
        If no rank of `xloader.dask.run` is at work in this thread.

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
