"""Worker processes import the script that started them, and must not start others meanwhile."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from functools import partial
from types import TracebackType

from xloader.errors import WorkersError

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


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
    sys.excepthook = partial(_show_in_a_line, error, sys.excepthook)
    raise error


def _show_in_a_line(
    own: WorkersError,
    others: _Hook,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    if error is own:
        sys.stderr.write(f"{kind.__name__}: {error}\n")
    else:
        others(kind, error, trace)
