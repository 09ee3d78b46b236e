"""Competitors take turns, each in a process of its own.

So all of them meet the same drift of the machine, none has another's caches, and whoever waits
for its turn does nothing::

    set up       reference | xloader | zarr | ...        all at once
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
"""Sets up and gives what is to be known before; then gives the figures of one turn after another,
and is sent whatever a turn needs to know."""

NOT_INSTALLED = "not installed"

PRELOADED = ("benchmarks.contest", "torch.utils.data", "xbatcher")
"""Modules that every process begins with, where they are installed."""


@dataclass(frozen=True)
class Absence:
    """Why a competitor takes no part.

    Parameters
    ----------
    reason : str
        In few words.
    details : str
        Where it went wrong.
    """

    reason: str
    details: str = ""


class AbsentError(RuntimeError):
    """Somebody takes no part without whom there is nothing to compare.

    Parameters
    ----------
    name : str
    absence : Absence
    """

    def __init__(self, name: str, absence: Absence) -> None:
        super().__init__(f"{name} {absence.reason}: {absence.details}")
        self.absence = absence


class Competitor:
    """A process that works when it is its turn.

    Parameters
    ----------
    name : str
    play : callable
        What it does; a function of a module, as the process must find it.
    args : tuple
        What it is told at the start.

    Attributes
    ----------
    absence : Absence or None
        Why it takes no part any more.
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
        """Wait until it is set up, and give what it says then; None if it takes no part."""
        try:
            said = self._pipe.recv()
        except EOFError:
            said = Absence(f"its process ended with {self._process.exitcode}")
        if isinstance(said, Absence):
            self.absence = said
            return None
        return said

    def turn(self, told: object = None) -> Any:
        """Let it take its turn, and give the figures; None if it takes no part."""
        if self.absence is not None:
            return None
        self._pipe.send((True, told))
        return self.ready()

    def require(self, said: Any) -> Any:
        """What it said.

        Raises
        ------
        AbsentError
            If it takes no part.
        """
        if self.absence is not None:
            raise AbsentError(self.name, self.absence)
        return said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # It may have ended already.
        with contextlib.suppress(OSError):
            self._pipe.send((False, None))
        self._pipe.close()
        self._process.join()


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
        # Whoever asked is gone.
        pass
    except Exception as error:
        pipe.send(Absence(f"failed: {type(error).__name__}", traceback.format_exc()))
    finally:
        turns.close()


def _fresh_processes() -> Any:
    """A context whose processes begin as copies of one that has only imported modules."""
    # With threads of its own that process could not be copied safely.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    return context
