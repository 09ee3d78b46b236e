"""Warnings of tasks on a cluster: collected by the workers, given by the process that waits.

A worker process has one place for warnings, and tasks read on several threads. So all warnings that
are given while tasks run are collected together, and the first task that ends takes them along.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from xloader.core.messages import warn_caller
from xloader.errors import MissingChunkWarning
from xloader.loader.processes.process_messages import Warned, forward_warnings

_lock = threading.Lock()
_collected: list[Warned] = []
_num_tasks = 0
_replaced = ExitStack()
_runs_here: set[str] = set()
"""Tokens of the runs whose tasks this process waits for."""


class TaskWarnings:
    """Gives the warnings of tasks in the process that waits. Use it in a ``with`` statement."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._shown: set[tuple[str, type[Warning]]] = set()

    def __enter__(self) -> Self:
        _runs_here.add(self._token)
        return self

    def __exit__(self, *_: object) -> None:
        _runs_here.discard(self._token)

    def show(self, warned: Sequence[Warned]) -> None:
        """Give the warnings of a task, but those that another task has given."""
        for own in warned:
            key = _text_of(own), own.category
            if key not in self._shown:
                self._shown.add(key)
                warn_caller(own.message, own.category)  # type: ignore[arg-type]


def _text_of(warned: Warned) -> str:
    """The part of a warning in which those of several processes agree."""
    if issubclass(warned.category, MissingChunkWarning):
        # Each process names the first absent chunk of a store that it meets itself.
        return warned.message.partition(" is absent from ")[2]
    return warned.message


@contextmanager
def collect_warnings(token: str) -> Iterator[list[Warned]]:
    """Collect the warnings of this process while a task runs.

    Warnings of a task that fails become notes of its error.
    """
    found: list[Warned] = []
    if token in _runs_here:
        yield found
        return
    _begin()
    try:
        yield found
    except BaseException as error:
        for own in _end():
            error.add_note(f"{own.category.__name__}: {own.message}")
        raise
    found += _end()


def _begin() -> None:
    global _num_tasks
    with _lock:
        _num_tasks += 1
        if _num_tasks == 1:
            _replaced.enter_context(warnings.catch_warnings())
            forward_warnings(_collected.append)


def _end() -> list[Warned]:
    global _num_tasks
    with _lock:
        _num_tasks -= 1
        if not _num_tasks:
            _replaced.close()
        found = list[Any](_collected)
        _collected.clear()
    return found
