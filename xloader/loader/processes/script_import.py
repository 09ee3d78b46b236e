"""What processes import as they start: the script, and modules that a server of forks has ready."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterable
from multiprocessing import forkserver
from types import TracebackType

from xloader.errors import WorkersError


def preload(modules: Iterable[str]) -> None:
    """Have the server of forks import modules once, beside those that the user has chosen.

    Each process begins as a copy of the server. Without effect if the server runs already.

    Parameters
    ----------
    modules : iterable of str
        Names of modules. Their import must start no thread, which a copy would lack.
    """
    server = getattr(forkserver, "_forkserver", None)
    if server is None or getattr(server, "_forkserver_pid", None) is not None:
        return
    chosen = getattr(server, "_preload_modules", [])
    server.set_forkserver_preload(list(dict.fromkeys([*chosen, *modules])))


def is_importing_script() -> bool:
    """Whether this is a worker process that imports the script which started it.

    Examples
    --------
    >>> is_importing_script()
    False
    """
    # Python's own flag: it refuses to start a process where this is set.
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def refuse_while_importing(given: str) -> None:
    """Refuse to start worker processes in one that is only importing the script.

    Python shows the error in one line, without the traceback through its own modules. The process
    that started this one raises an error too.

    Parameters
    ----------
    given : str
        The option that asks for processes.

    Raises
    ------
    WorkersError
        If this is such a process.
    """
    if not is_importing_script():
        return
    error = WorkersError(
        "a worker process imports the script again, and would start its own workers",
        given=f"{given}, iterated over during the import of the script",
        remedy='put the code that trains, writes or prints under if __name__ == "__main__":',
    )
    others = sys.excepthook

    def show(kind: type[BaseException], shown: BaseException, trace: TracebackType | None) -> None:
        """Show this error in a line, and any other as before."""
        if shown is error:
            sys.stderr.write(f"{kind.__name__}: {error}\n")
        else:
            others(kind, shown, trace)

    sys.excepthook = show
    raise error
