"""A progress bar of a job that reads chunks."""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec
from typing import Any, Self

from xloader.core.messages import require_tqdm
from xloader.core.option_checks import check_choice


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
    check_choice("progress", progress, (True, False, None))
    if progress:
        require_tqdm()
    elif progress is None:
        return find_spec("tqdm") is not None and sys.stderr.isatty()
    return bool(progress)
