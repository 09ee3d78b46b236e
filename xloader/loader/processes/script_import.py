"""Worker processes import the script that started them, and must not start others meanwhile."""

from __future__ import annotations

import multiprocessing
import sys
from types import TracebackType

from xloader.errors import WorkersError


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
