"""A progress bar of a job that reads chunks."""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec
from typing import Any, Self

from xloader.errors import MissingDependencyError, OptionError


class ProgressBar:
    """Counts chunks on stderr, with the library tqdm. Any thread may call `advance`.

    `progress`: whether to show it; None where stderr is a terminal and tqdm is installed.
    """

    def __init__(self, title: str, total: int, progress: bool | None, unit: str = "chunks") -> None:
        self._bar: Any = None
        self._lock = threading.Lock()
        if is_shown(progress):
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=title, unit=f" {unit}", file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int = 1) -> None:
        """Count some more as done."""
        if self._bar is not None:
            with self._lock:
                self._bar.update(count)


def is_shown(progress: bool | None) -> bool:
    """Whether a progress bar is shown, after a check of the option."""
    if progress not in (None, True, False):
        raise OptionError(
            "progress is neither True, False nor None",
            given=repr(progress),
            allowed="True, False, or None to show a bar where stderr is a terminal",
        )
    is_installed = find_spec("tqdm") is not None
    if progress and not is_installed:
        raise MissingDependencyError(
            "a progress bar needs the library tqdm, which is not installed",
            remedy="pass progress=False, or pip install tqdm",
        )
    return is_installed and sys.stderr.isatty() if progress is None else bool(progress)
