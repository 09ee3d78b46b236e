"""PerProcess: one handle per process, never shared across a fork or in a pickle."""

from __future__ import annotations

import os
import threading

import pytest

from xloader.sources.stores.per_process import PerProcess


def in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)


def test_a_lock_held_while_forking_does_not_hang_the_child(monkeypatch: pytest.MonkeyPatch):
    handle = PerProcess(list, "a file")
    begun, is_forked = threading.Event(), threading.Event()

    def open_slowly() -> list[object]:
        begun.set()
        assert is_forked.wait(10)
        return []

    handle._make = open_slowly
    parent = threading.Thread(target=handle._open, daemon=True)
    parent.start()
    assert begun.wait(10)
    handle._make = list
    in_a_child(monkeypatch)
    opened = []
    thread = threading.Thread(target=lambda: opened.append(handle.get()), daemon=True)
    thread.start()
    thread.join(10)
    is_forked.set()
    parent.join(10)
    assert opened == [[]]
