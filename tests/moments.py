"""Do something at a chosen change of the disk: end the run, fill the disk, or run an equal job."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest


class Killed(BaseException):
    """Takes the place of the end of a process: nothing that follows reaches the disk either."""


@contextmanager
def watched(folder: Path, before: Callable[[int], None]) -> Iterator[list[str]]:
    """Call a function before each change under a folder, with its number.

    The list names the changes so far. Those that the function makes do not count.
    """
    done: list[str] = []
    busy = [False]

    def watch(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **options: Any) -> Any:
            mode = str(args[0] if args else options.get("mode", "r"))
            is_read = name == "open" and set(mode) <= set("rb")
            is_here = options.get("dir_fd") is not None or str(path).startswith(str(folder))
            if is_here and not is_read and not busy[0]:
                done.append(f"{name} {path}")
                busy[0] = True
                try:
                    before(len(done) - 1)
                finally:
                    busy[0] = False
            return own(path, *args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("rename", "replace", "mkdir", "unlink", "rmdir"):
            patch.setattr(os, name, watch(name, getattr(os, name)))
        opens = watch("open", io.open)
        for module in (io, builtins):
            patch.setattr(module, "open", opens)
        yield done


@contextmanager
def killed_at(number: int, folder: Path) -> Iterator[list[str]]:
    """Let a run end at one change of the disk."""

    def end(current: int) -> None:
        if current >= number:
            raise Killed

    with suppress(Killed), watched(folder, end) as done:
        yield done
