"""Competitors take turns, each in a process of its own.

So all of them meet the same drift in the machine's speed, none uses another's caches, and each is
idle while it waits::

    set up       xloader; reference | zarr | ...         xloader alone, then the others at once
    first turn   reference, xloader, zarr, ...           one by one, to warm up
    next turns   reference, xloader, zarr, ...           one by one, measured
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self

Play = Callable[..., Generator[Any, Any, None]]
"""Yields the result of its setup first, then the figures of each turn.

Each turn is sent the data that it needs.
"""

NOT_INSTALLED = "not installed"

PRELOADED = ("benchmarks.contest", "torch.utils.data", "xbatcher")
"""Modules that every process imports at its start, if they are installed."""


@dataclass(frozen=True)
class Absence:
    """The reason why a competitor cannot run.

    Parameters
    ----------
    reason : str
        The reason in few words.
    details : str
        The traceback, or the missing module.
    """

    reason: str
    details: str = ""


class AbsentError(RuntimeError):
    """A competitor is missing without which there is nothing to compare.

    Parameters
    ----------
    name : str
    absence : Absence
    """

    def __init__(self, name: str, absence: Absence) -> None:
        super().__init__(f"{name} {absence.reason}: {absence.details}")
        self.absence = absence


class Competitor:
    """A process that works only in its turn.

    Parameters
    ----------
    name : str
    play : callable
        The work, a function of a module, because the process must be able to import it.
    args : tuple
        Arguments of ``play``.

    Attributes
    ----------
    absence : Absence or None
        Why the competitor cannot run; None while it can.
    """

    def __init__(self, name: str, play: Play, *args: object) -> None:
        self.name = name
        self.absence: Absence | None = None
        context = _fresh_processes()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, play, args), name=name)
        self._process.start()
        theirs.close()

    def ready(self) -> Any:
        """Wait for the next answer and return it; None if the competitor cannot run."""
        try:
            said = self._pipe.recv()
        except EOFError:
            said = Absence(f"its process ended with {self._process.exitcode}")
        if isinstance(said, Absence):
            self.absence = said
            return None
        return said

    def turn(self, told: object = None) -> Any:
        """Let the competitor take its turn and return its figures; None if it cannot run."""
        if self.absence is not None:
            return None
        self._pipe.send((True, told))
        return self.ready()

    def require(self, said: Any) -> Any:
        """Return the answer ``said``, or raise if the competitor cannot run.

        Raises
        ------
        AbsentError
            If the competitor cannot run.
        """
        if self.absence is not None:
            raise AbsentError(self.name, self.absence)
        return said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The process may have ended already.
        with contextlib.suppress(OSError):
            self._pipe.send((False, None))
        self._pipe.close()
        self._process.join()


def on_cores(num: int | None, play: Play, *args: object) -> Generator[Any, Any, None]:
    """Do the same work on the first few of the cores; None for all of them."""
    if num is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num])
    yield from play(*args)


def _serve(pipe: Connection, play: Play, args: tuple[object, ...]) -> None:
    warnings.simplefilter("ignore")
    turns = play(*args)
    try:
        said = next(turns)
        while True:
            pipe.send(said)
            goes_on, told = pipe.recv()
            if not goes_on:
                break
            said = turns.send(told)
    except ModuleNotFoundError as error:
        pipe.send(Absence(NOT_INSTALLED, f"there is no module {error.name}"))
    except EOFError:
        # The process that asked has ended.
        pass
    except Exception as error:
        pipe.send(Absence(f"failed: {type(error).__name__}", traceback.format_exc()))
    finally:
        turns.close()


def _fresh_processes() -> Any:
    """Return a context whose processes are copies of one that has only imported modules."""
    # A process that has threads cannot be forked safely.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    return context
