"""Texts for users: counts, hints, libraries that are missing, and whose line an error points at."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Final

from xloader.errors import (
    MissingDependencyError,
    TransformError,
    UnknownNameError,
    XloaderError,
    XloaderWarning,
    printable,
)

_PASSED: Final = (
    *("xloader.", "xarray.", "dask.", "distributed.", "torch.utils.data.", "torchdata."),
    *("contextlib.", "functools.", "multiprocessing.", "cloudpickle."),
)
"""Beginnings of the names of modules whose lines no warning points at: they call xloader."""


class names_function:
    """Context that turns an error of a user's function into one that names the function.

    The original exception could be misunderstood further up: a ``StopIteration`` would end an
    epoch as if it were complete.
    """

    # A class, because contextlib.contextmanager would let a StopIteration through: it takes a
    # RuntimeError with that cause, such as a TransformError, for the StopIteration itself.
    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, error_class: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, XloaderError):
            return
        failure = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise TransformError(
            f"{self._what} failed ({failure})",
            remedy="correct the function; its own error is the cause of this one",
        ) from error


def warn_caller(message: str, category: type[XloaderWarning]) -> None:
    """Give a warning that points at the user's line.

    That is the innermost line outside xloader and outside the libraries that call it.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith(_PASSED):
        level, frame = level + 1, frame.f_back
    warnings.warn(printable(message), category, stacklevel=level)


def extra_remedy(extras: str) -> str:
    """Advice on how to install a missing library, for an error."""
    # There is no release on a package index yet.
    return f'install the extra "{extras}": run pip install ".[{extras}]" in a clone of xloader'


def closest(name: object, known: Iterable[str]) -> str | None:
    """The known name most similar to a misspelt one, in any case; None if none is similar."""
    by_lower = {word.lower(): word for word in known}
    similar = get_close_matches(str(name).lower(), by_lower, n=1)
    return by_lower[similar[0]] if similar else None


def unknown(
    name: object, known: Iterable[object], noun: str, what: str = "", remedy: str = ""
) -> UnknownNameError:
    """The error for a name that is not known. The closest name that is comes before a remedy."""
    names = list(map(str, known))
    close = closest(name, names)
    return UnknownNameError(
        what or f"there is no {noun} with this name",
        given=repr(name),
        allowed=", ".join(map(repr, names)) or f"none: there is no {noun}",
        remedy=f"did you mean {close!r}?"
        if close
        else remedy or f"pass the name of an existing {noun}",
    )


def show_count(count: float, thing: str) -> str:
    """Format a number of things, with the plural where the number is not one."""
    number = f"{int(count):,}" if count == int(count) else f"{count:,g}"
    ending = "es" if thing.endswith(("s", "x", "sh", "tch")) else "s"
    return f"{number} {thing}{'' if count == 1 else ending}"


def require_libraries(names: tuple[str, ...]) -> None:
    """Check that optional libraries are installed, without importing them."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise _not_installed(f"the demo needs {', '.join(missing)}", "torch,viz")


def require_matplotlib() -> None:
    """Check that pictures can be drawn, without importing matplotlib."""
    if find_spec("matplotlib") is None:
        raise _not_installed("pictures need matplotlib", "viz")


def require_tqdm() -> None:
    """Check that progress bars can be shown, without importing tqdm."""
    if find_spec("tqdm") is None:
        raise _not_installed("progress bars need tqdm", "viz")


def _not_installed(need: str, extras: str) -> MissingDependencyError:
    return MissingDependencyError(need, given="not installed", remedy=extra_remedy(extras))
